------------------------------ MODULE protocol ------------------------------
(* Slots, window, leaves, changes of membership and failovers of docs/protocol.md (sections 2, 3, 12 and 13), for TLC.

   The network is the set of all packets ever sent: each may arrive at any time, again and again, in any order,
   or never. Packet numbers stand for sequence numbers, and the number of an admission for the job id and tokens of
   a packet: a generation has one, and another at each switch that it goes over to. Of words, the set of
   contributions that are in them is kept, and their number. *)

EXTENDS Integers, FiniteSets

CONSTANTS
    Workers,
    Groups,    \* the workers at each leaf; {} if all are at one switch
    P,         \* slots
    Calls,     \* collectives that each worker calls in a generation
    Packets,   \* packets of a collective
    Losses,    \* workers that may be lost
    Spares     \* switches, or trees, that the job may go over to

VARIABLES
    \* Workers.
    mode,      \* "run", "frozen", "finish", "done" with the generation; "suspended" until there is another switch;
               \* "lost" to the controller, "gone"
    at,        \* the admission that a worker has
    sent,      \* by admission: the packet number that it sends next
    held,      \* packet numbers whose RESULT it has of this switch, and those below the first one here
    taken,     \* packet numbers of this generation whose RESULT it has of any switch
    limit,     \* collectives that it may complete
    ended,     \* by admission: collectives that it had completed when it went on to another generation, or -1
    \* Switches. One is named by the workers at and below it.
    slot,
    up,        \* contributions that leaves have sent
    results,   \* RESULTs that the root has sent
    fenced,    \* workers whose packets are dropped
    dead,      \* switches that are gone
    \* The controller.
    now,       \* the admission that the switches know
    members,   \* of each admission
    origin,    \* of each: the first one of its generation
    first,     \* of each: its first packet number
    lost,      \* members that are lost
    said,      \* collectives that each has completed, as it told; -1 before
    sure,      \* those who had all RESULTs of these from the present switch when they told
    agreed,    \* the number to be completed by all; -1 before it is known
    moving,    \* TRUE while members are to suspend
    spares,    \* switches that are left to go over to
    failed     \* TRUE after the end of the job with an error at every survivor

worker == <<mode, at, sent, held, taken, limit, ended>>
switch == <<slot, up, results, fenced, dead>>
control == <<now, members, origin, first, lost, said, sure, agreed, moving, spares, failed>>
vars == <<worker, switch, control>>

Admissions == 1 .. Losses + Spares + 1
Root == Workers
Switches == {Root} \union Groups
Max(numbers) == CHOOSE k \in numbers : \A other \in numbers : k >= other
Min(numbers) == CHOOSE k \in numbers : \A other \in numbers : k <= other

(* The switch that a worker sends to, and the senders of a switch: workers, as sets of one, or leaves. *)
SwitchOf(w) == IF Groups = {} THEN Root ELSE CHOOSE leaf \in Groups : w \in leaf
Senders(s, present) == IF s = Root /\ Groups # {} THEN {leaf \in Groups : leaf \intersect present # {}}
                       ELSE {{w} : w \in s \intersect present}

(* Section 2, INIT: the first packet for each slot is a round ahead of it. *)
Initialised(present, from) ==
    [s \in Switches |-> [i \in 0 .. P - 1 |->
        [q |-> from + ((i - from) % P) - P, seen |-> Senders(s, present), words |-> {}, added |-> 0]]]

Init ==
    /\ mode = [w \in Workers |-> "run"]
    /\ at = [w \in Workers |-> 1]
    /\ sent = [w \in Workers |-> [g \in Admissions |-> 0]]
    /\ held = [w \in Workers |-> {}]
    /\ taken = [w \in Workers |-> {}]
    /\ limit = [w \in Workers |-> Calls]
    /\ ended = [w \in Workers |-> [g \in Admissions |-> -1]]
    /\ slot = Initialised(Workers, 0)
    /\ up = {} /\ results = {} /\ fenced = {} /\ dead = {}
    /\ now = 1
    /\ members = [g \in Admissions |-> IF g = 1 THEN Workers ELSE {}]
    /\ origin = [g \in Admissions |-> IF g = 1 THEN 1 ELSE 0]
    /\ first = [g \in Admissions |-> 0]
    /\ lost = {}
    /\ said = [w \in Workers |-> -1]
    /\ sure = {} /\ agreed = -1
    /\ moving = FALSE /\ spares = Spares /\ failed = FALSE

-----------------------------------------------------------------------------
(* Section 2, Slots: the slot after a sender's packet with these words. *)
After(old, sender, packet) ==
    CASE packet.q = old.q + P ->
            [q |-> packet.q, seen |-> {sender}, words |-> packet.words, added |-> packet.added]
      [] packet.q = old.q /\ sender \notin old.seen ->
            [q |-> old.q, seen |-> old.seen \union {sender},
             words |-> old.words \union packet.words, added |-> old.added + packet.added]
      [] OTHER -> old  \* a duplicate, which may be answered, or stale

(* A packet gets to switch s. Packets that change nothing are no steps, so a schedule without end is none. *)
Arrives(s, sender, packet) ==
    LET i == packet.q % P
        new == After(slot[s][i], sender, packet)
        out == [g |-> now, q |-> new.q, words |-> new.words, added |-> new.added]
        full == new.seen = Senders(s, members[now])
    IN  /\ s \notin dead
        /\ new # slot[s][i]
        /\ slot' = [slot EXCEPT ![s][i] = new]
        /\ results' = IF full /\ s = Root THEN results \union {out} ELSE results
        /\ up' = IF full /\ s # Root THEN up \union {[leaf |-> s, packet |-> out]} ELSE up
        /\ UNCHANGED <<worker, control, fenced, dead>>

(* Admission. *)
Admitted(w, g) == g = now /\ w \in members[now] \ fenced

FromWorker(w, g, q) ==
    /\ Admitted(w, g)
    /\ Arrives(SwitchOf(w), {w}, [q |-> q, words |-> {<<w, origin[g], q>>}, added |-> 1])

FromLeaf(contribution) == Arrives(Root, contribution.leaf, contribution.packet)

-----------------------------------------------------------------------------
(* The least packet number whose RESULT a worker lacks, and collectives that it has completed. *)
Lowest(w) == CHOOSE q \in 0 .. Calls * Packets : q \notin taken[w] /\ \A k \in 0 .. q - 1 : k \in taken[w]
Completed(w) == Min({Lowest(w) \div Packets, limit[w]})
Goes(w) == mode[w] \in {"run", "finish", "lost"} /\ Completed(w) < limit[w]

(* Section 13: packet numbers below this one were sent to earlier switches, and others may need them here. *)
End(w) == Max({0} \union {sent[w][g] : g \in {k \in 1 .. at[w] - 1 : origin[k] = origin[at[w]]}})
Replays(w) == mode[w] \notin {"suspended", "gone"} /\ \E q \in 0 .. End(w) - 1 : q \notin held[w]

(* Section 3: the window. *)
Send(w) ==
    LET q == sent[w][at[w]]
    IN  /\ (Goes(w) /\ q \div Packets < limit[w]) \/ (Replays(w) /\ q < End(w))
        /\ \A k \in 0 .. q - P \div 2 : k \in held[w]
        /\ sent' = [sent EXCEPT ![w][at[w]] = q + 1]
        /\ UNCHANGED <<mode, at, held, taken, limit, ended, switch, control>>

Take(w, result) ==
    /\ Goes(w) \/ Replays(w)
    /\ result.g = at[w]
    /\ result.q < sent[w][at[w]] /\ result.q \notin held[w]
    /\ held' = [held EXCEPT ![w] = @ \union {result.q}]
    /\ taken' = [taken EXCEPT ![w] = @ \union {result.q}]
    /\ UNCHANGED <<mode, at, sent, limit, ended, switch, control>>

-----------------------------------------------------------------------------
(* Section 12. A lost process may go on for a while, and the switch learns later to drop what it sends. *)
Survivors == members[now] \ lost

Lose(w) ==  \* it ends a failover
    /\ w \in Survivors /\ Survivors # {w}
    /\ Cardinality(Workers \ members[now]) + Cardinality(lost) < Losses
    /\ lost' = lost \union {w}
    /\ moving' = FALSE
    /\ mode' = [mode EXCEPT ![w] = IF mode[w] \in {"run", "finish"} THEN "lost" ELSE "gone"]
    /\ UNCHANGED <<at, sent, held, taken, limit, ended, switch>>
    /\ UNCHANGED <<now, members, origin, first, said, sure, agreed, spares, failed>>

Dies(w) ==
    /\ mode[w] = "lost"
    /\ mode' = [mode EXCEPT ![w] = "gone"]
    /\ UNCHANGED <<at, sent, held, taken, limit, ended, switch, control>>

Fence ==
    /\ fenced # lost
    /\ fenced' = lost
    /\ UNCHANGED <<worker, slot, up, results, dead, control>>

Freeze(w) ==  \* and progress
    /\ mode[w] \in {"run", "suspended"} /\ at[w] = now /\ lost # {}
    /\ mode' = [mode EXCEPT ![w] = "frozen"]
    /\ limit' = [limit EXCEPT ![w] = Completed(w)]
    /\ said' = [said EXCEPT ![w] = Completed(w)]
    /\ sure' = IF 0 .. Completed(w) * Packets - 1 \subseteq held[w] THEN sure \union {w} ELSE sure
    /\ UNCHANGED <<at, sent, held, taken, ended, switch, now, members, origin, first, lost, agreed, moving, spares, failed>>

Decide ==
    /\ agreed = -1 /\ lost # {} /\ \A w \in Survivors : said[w] >= 0
    /\ agreed' = Max({said[w] : w \in members[now]})
    /\ UNCHANGED <<worker, switch, now, members, origin, first, lost, said, sure, moving, spares, failed>>

Finish(w) ==
    /\ mode[w] = "frozen" /\ agreed >= 0
    /\ mode' = [mode EXCEPT ![w] = "finish"]
    /\ limit' = [limit EXCEPT ![w] = agreed]
    /\ UNCHANGED <<at, sent, held, taken, ended, switch, control>>

Proceed(w) ==
    /\ mode[w] = "finish" /\ Completed(w) = limit[w]
    /\ mode' = [mode EXCEPT ![w] = "done"]
    /\ UNCHANGED <<at, sent, held, taken, limit, ended, switch, control>>

(* A new admission, whose packets begin with a number: the slots of former ones are forgotten. *)
Admit(present, generation, from) ==
    /\ now' = now + 1
    /\ members' = [members EXCEPT ![now + 1] = present]
    /\ origin' = [origin EXCEPT ![now + 1] = generation]
    /\ first' = [first EXCEPT ![now + 1] = from]
    /\ slot' = Initialised(present, from)
    /\ up' = {} /\ fenced' = {} /\ dead' = {}
    /\ lost' = {} /\ moving' = FALSE
    /\ said' = [w \in Workers |-> -1] /\ sure' = {} /\ agreed' = -1
    /\ UNCHANGED <<worker, results, spares, failed>>

Open ==
    /\ lost # {} /\ \A w \in Survivors : mode[w] = "done" /\ at[w] = now
    /\ Admit(Survivors, now + 1, 0)

Resume(w) ==
    /\ mode[w] = "done" /\ at[w] < now
    /\ mode' = [mode EXCEPT ![w] = "run"]
    /\ at' = [at EXCEPT ![w] = now]
    /\ held' = [held EXCEPT ![w] = {}]
    /\ taken' = [taken EXCEPT ![w] = {}]
    /\ limit' = [limit EXCEPT ![w] = Calls]
    /\ ended' = [ended EXCEPT ![w][at[w]] = Completed(w)]
    /\ UNCHANGED <<sent, switch, control>>

-----------------------------------------------------------------------------
(* Section 13. A switch dies; the controller finds that later, or takes a switch for dead that is not, or drains it. *)
SwitchDies(s) ==
    /\ dead = {} /\ spares > 0
    /\ dead' = {s} /\ spares' = spares - 1
    /\ UNCHANGED <<worker, slot, up, results, fenced>>
    /\ UNCHANGED <<now, members, origin, first, lost, said, sure, agreed, moving, failed>>

BeginFailover ==
    /\ ~moving /\ lost = {} /\ (dead # {} \/ spares > 0)
    /\ moving' = TRUE
    /\ spares' = IF dead # {} THEN spares ELSE spares - 1
    /\ UNCHANGED <<worker, switch, now, members, origin, first, lost, said, sure, agreed, failed>>

Suspend(w) ==  \* and replay: it tells the least packet number whose RESULT it lacks, which stays
    /\ moving /\ mode[w] = "run" /\ at[w] = now
    /\ mode' = [mode EXCEPT ![w] = "suspended"]
    /\ UNCHANGED <<at, sent, held, taken, limit, ended, switch, control>>

GoOver ==
    /\ moving /\ \A w \in members[now] : mode[w] = "suspended" /\ at[w] = now
    /\ Admit(members[now], origin[now], Min({Lowest(w) : w \in members[now]}))

Move(w) ==
    /\ mode[w] = "suspended" /\ at[w] < now
    /\ mode' = [mode EXCEPT ![w] = "run"]
    /\ at' = [at EXCEPT ![w] = now]
    /\ sent' = [sent EXCEPT ![w][now] = first[now]]
    /\ held' = [held EXCEPT ![w] = 0 .. first[now] - 1]
    /\ UNCHANGED <<taken, limit, ended, switch, control>>

(* A rank and a switch are lost together. A survivor lacks RESULTs of a collective that others hold; the switch is gone, or
   nobody who holds them has them from the present one, which may lack what the lost rank had contributed. *)
Fail ==
    /\ agreed >= 0 /\ \E w \in Survivors : said[w] < agreed /\ mode[w] # "done"
    /\ dead # {} \/ {w \in sure : said[w] = agreed} = {}
    /\ failed' = TRUE
    /\ UNCHANGED <<worker, switch, now, members, origin, first, lost, said, sure, agreed, moving, spares>>

-----------------------------------------------------------------------------
Finished == lost = {} /\ ~moving /\ \A w \in Survivors : at[w] = now /\ mode[w] = "run" /\ Completed(w) = Calls
Ended == Finished \/ failed

Next ==
    \/ /\ ~failed
       /\ \/ \E w \in Workers :
              \/ Send(w) \/ Lose(w) \/ Dies(w) \/ Freeze(w) \/ Finish(w) \/ Proceed(w) \/ Resume(w)
              \/ Suspend(w) \/ Move(w)
              \/ \E g \in Admissions : \E q \in first[g] .. sent[w][g] - 1 : FromWorker(w, g, q)
              \/ \E result \in results : Take(w, result)
          \/ \E contribution \in up : FromLeaf(contribution)
          \/ \E s \in Switches : SwitchDies(s)
          \/ Fence \/ Decide \/ Open \/ BeginFailover \/ GoOver \/ Fail
    \/ Ended /\ UNCHANGED vars  \* the only states that nothing need follow: any other would be a deadlock

Spec == Init /\ [][Next]_vars /\ WF_vars(Next)

(* Every RESULT is the sum of what all members of its generation sent for its packet number, each once. *)
RightSums ==
    \A result \in results :
        /\ result.words = {<<w, origin[result.g], result.q>> : w \in members[result.g]}
        /\ result.added = Cardinality(members[result.g])

(* A worker takes RESULTs of its admission only, and what it has is of its generation. *)
OwnResults ==
    \A w \in Workers :
        /\ \A q \in held[w] \ (0 .. first[at[w]] - 1) : \E result \in results : result.g = at[w] /\ result.q = q
        /\ \A q \in taken[w] : \E result \in results : origin[result.g] = origin[at[w]] /\ result.q = q

(* A RESULT that was sent is in the slots, on the whole way, while a survivor needs it and the switches are there. *)
Answered ==
    \A w \in Survivors : at[w] = now /\ dead = {} =>
        \A result \in results :
            result.g = now /\ result.q \in (0 .. sent[w][now] - 1) \ held[w] =>
                \A s \in {Root, SwitchOf(w)} : slot[s][result.q % P].q = result.q

(* At another switch a worker lacks nothing below the first packet, and has to send no more than its last P again. *)
Replayed ==
    \A w \in Workers : origin[at[w]] # at[w] =>
        /\ 0 .. first[at[w]] - 1 \subseteq taken[w]
        /\ End(w) <= first[at[w]] + P

(* All who went on from a generation have completed the same collectives in it, and all that any of them told. *)
Agreement ==
    /\ \A v, w \in Workers : \A g \in Admissions :
        ended[v][g] >= 0 /\ ended[w][g] >= 0 => ended[v][g] = ended[w][g]
    /\ agreed >= 0 => \A w \in Survivors : said[w] <= agreed

(* After the last loss every survivor completes every collective; or a rank and a switch were lost, and all have an error. *)
Completes == []<>Ended
=============================================================================
