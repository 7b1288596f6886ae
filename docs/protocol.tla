------------------------------ MODULE protocol ------------------------------
(* Slots, window, leaves and changes of membership of docs/protocol.md (sections 2, 3 and 12), for TLC.

   The network is the set of all packets ever sent: each may arrive at any time, again and again, in any order,
   or never. Packet numbers stand for sequence numbers, and the generation for the job id and tokens of a packet.
   What a packet's words are worth is kept as the set of contributions that are in them, and their number. *)

EXTENDS Integers, FiniteSets

CONSTANTS
    Workers,
    Groups,    \* the workers at each leaf; {} if all are at one switch
    P,         \* slots
    Calls,     \* collectives that each worker calls in a generation
    Packets,   \* packets of a collective
    Losses     \* workers that may be lost

VARIABLES
    \* Workers.
    mode,      \* "run", "frozen", "finish", "done" with the generation, "lost" to the controller, "gone"
    at,        \* the generation that a worker is in
    sent,      \* packets sent, by generation
    held,      \* packet numbers of this generation whose RESULT a worker holds
    limit,     \* collectives that it may complete
    ended,     \* collectives that it completed in each generation that it went on from; -1 for others
    \* Switches. One is named by the workers at and below it.
    slot,
    up,        \* contributions that leaves have sent
    results,   \* RESULTs that the root has sent
    fenced,    \* workers whose packets are dropped
    \* The controller.
    gen,       \* the generation at the switches
    members,   \* of each generation
    lost,      \* members of this generation that are lost
    said,      \* collectives that each has completed, as it told; -1 before
    agreed     \* the number to be completed by all; -1 before it is known

vars == <<mode, at, sent, held, limit, ended, slot, up, results, fenced, gen, members, lost, said, agreed>>
worker == <<mode, at, sent, held, limit, ended>>
switch == <<slot, up, results, fenced>>
control == <<gen, members, lost, said, agreed>>

Generations == 1 .. Losses + 1
Root == Workers
Switches == {Root} \union Groups
Max(numbers) == CHOOSE k \in numbers : \A other \in numbers : k >= other

(* The switch that a worker sends to, and the senders of a switch: workers, as sets of one, or leaves. *)
SwitchOf(w) == IF Groups = {} THEN Root ELSE CHOOSE leaf \in Groups : w \in leaf
Senders(s, present) == IF s = Root /\ Groups # {} THEN {leaf \in Groups : leaf \intersect present # {}}
                       ELSE {{w} : w \in s \intersect present}

(* Section 2, INIT: the first packet for each slot is a round ahead of it. *)
Initialised(present) ==
    [s \in Switches |-> [i \in 0 .. P - 1 |->
        [q |-> i - P, seen |-> Senders(s, present), words |-> {}, added |-> 0]]]

Init ==
    /\ mode = [w \in Workers |-> "run"]
    /\ at = [w \in Workers |-> 1]
    /\ sent = [w \in Workers |-> [g \in Generations |-> 0]]
    /\ held = [w \in Workers |-> {}]
    /\ limit = [w \in Workers |-> Calls]
    /\ ended = [w \in Workers |-> [g \in Generations |-> -1]]
    /\ slot = Initialised(Workers)
    /\ up = {}
    /\ results = {}
    /\ fenced = {}
    /\ gen = 1
    /\ members = [g \in Generations |-> IF g = 1 THEN Workers ELSE {}]
    /\ lost = {}
    /\ said = [w \in Workers |-> -1]
    /\ agreed = -1

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
        out == [g |-> gen, q |-> new.q, words |-> new.words, added |-> new.added]
        full == new.seen = Senders(s, members[gen])
    IN  /\ new # slot[s][i]
        /\ slot' = [slot EXCEPT ![s][i] = new]
        /\ results' = IF full /\ s = Root THEN results \union {out} ELSE results
        /\ up' = IF full /\ s # Root THEN up \union {[leaf |-> s, packet |-> out]} ELSE up
        /\ UNCHANGED <<worker, control, fenced>>

(* Admission. *)
Admitted(w, g) == g = gen /\ w \in members[gen] \ fenced

FromWorker(w, g, q) ==
    /\ q < sent[w][g]
    /\ Admitted(w, g)
    /\ Arrives(SwitchOf(w), {w}, [q |-> q, words |-> {<<w, g, q>>}, added |-> 1])

FromLeaf(contribution) == Arrives(Root, contribution.leaf, contribution.packet)

-----------------------------------------------------------------------------
(* RESULTs that a worker holds without a gap, and collectives that it has completed. *)
Base(w) == CHOOSE q \in 0 .. Calls * Packets : q \notin held[w] /\ \A k \in 0 .. q - 1 : k \in held[w]
Completed(w) == LET done == Base(w) \div Packets IN IF done < limit[w] THEN done ELSE limit[w]
Goes(w) == mode[w] \in {"run", "finish", "lost"} /\ (Completed(w) < limit[w] \/ limit[w] = Calls)

(* Section 3: the window. *)
Send(w) ==
    LET q == sent[w][at[w]]
    IN  /\ Goes(w)
        /\ q \div Packets < limit[w]
        /\ \A k \in 0 .. q - P \div 2 : k \in held[w]
        /\ sent' = [sent EXCEPT ![w][at[w]] = q + 1]
        /\ UNCHANGED <<mode, at, held, limit, ended, switch, control>>

Take(w, result) ==
    /\ Goes(w)
    /\ result.g = at[w]
    /\ result.q < sent[w][at[w]] /\ result.q \notin held[w]
    /\ held' = [held EXCEPT ![w] = @ \union {result.q}]
    /\ UNCHANGED <<mode, at, sent, limit, ended, switch, control>>

-----------------------------------------------------------------------------
(* Section 12. A lost process may go on for a while, and the switch learns later to drop what it sends. *)
Survivors == members[gen] \ lost

Lose(w) ==
    /\ gen <= Losses /\ w \in Survivors /\ Survivors # {w}
    /\ Cardinality(Workers \ members[gen]) + Cardinality(lost) < Losses
    /\ lost' = lost \union {w}
    /\ mode' = [mode EXCEPT ![w] = IF mode[w] \in {"run", "finish"} THEN "lost" ELSE "gone"]
    /\ UNCHANGED <<at, sent, held, limit, ended, switch, gen, members, said, agreed>>

Dies(w) ==
    /\ mode[w] = "lost"
    /\ mode' = [mode EXCEPT ![w] = "gone"]
    /\ UNCHANGED <<at, sent, held, limit, ended, switch, control>>

Fence ==
    /\ fenced # lost
    /\ fenced' = lost
    /\ UNCHANGED <<worker, slot, up, results, control>>

Freeze(w) ==  \* and progress
    /\ mode[w] = "run" /\ at[w] = gen /\ lost # {}
    /\ mode' = [mode EXCEPT ![w] = "frozen"]
    /\ limit' = [limit EXCEPT ![w] = Completed(w)]
    /\ said' = [said EXCEPT ![w] = Completed(w)]
    /\ UNCHANGED <<at, sent, held, ended, switch, gen, members, lost, agreed>>

Decide ==
    /\ agreed = -1 /\ lost # {} /\ \A w \in Survivors : said[w] >= 0
    /\ agreed' = Max({said[w] : w \in members[gen]})
    /\ UNCHANGED <<worker, switch, gen, members, lost, said>>

Finish(w) ==
    /\ mode[w] = "frozen" /\ agreed >= 0
    /\ mode' = [mode EXCEPT ![w] = "finish"]
    /\ limit' = [limit EXCEPT ![w] = agreed]
    /\ UNCHANGED <<at, sent, held, ended, switch, control>>

Proceed(w) ==
    /\ mode[w] = "finish" /\ Completed(w) = limit[w]
    /\ mode' = [mode EXCEPT ![w] = "done"]
    /\ UNCHANGED <<at, sent, held, limit, ended, switch, control>>

Open ==
    /\ lost # {} /\ \A w \in Survivors : mode[w] = "done" /\ at[w] = gen
    /\ gen' = gen + 1
    /\ members' = [members EXCEPT ![gen + 1] = Survivors]
    /\ slot' = Initialised(Survivors)
    /\ up' = {} /\ lost' = {} /\ fenced' = {}
    /\ said' = [w \in Workers |-> -1] /\ agreed' = -1
    /\ UNCHANGED <<worker, results>>

Resume(w) ==
    /\ mode[w] = "done" /\ at[w] < gen
    /\ mode' = [mode EXCEPT ![w] = "run"]
    /\ at' = [at EXCEPT ![w] = gen]
    /\ held' = [held EXCEPT ![w] = {}]
    /\ limit' = [limit EXCEPT ![w] = Calls]
    /\ ended' = [ended EXCEPT ![w][at[w]] = Completed(w)]
    /\ UNCHANGED <<sent, switch, control>>

-----------------------------------------------------------------------------
Finished == lost = {} /\ \A w \in Survivors : at[w] = gen /\ mode[w] = "run" /\ Completed(w) = Calls

Next ==
    \/ \E w \in Workers :
        \/ Send(w) \/ Lose(w) \/ Dies(w) \/ Freeze(w) \/ Finish(w) \/ Proceed(w) \/ Resume(w)
        \/ \E g \in Generations : \E q \in 0 .. sent[w][g] - 1 : FromWorker(w, g, q)
        \/ \E result \in results : Take(w, result)
    \/ \E contribution \in up : FromLeaf(contribution)
    \/ Fence \/ Decide \/ Open
    \/ Finished /\ UNCHANGED vars  \* the only state that nothing need follow: any other would be a deadlock

Spec == Init /\ [][Next]_vars /\ WF_vars(Next)

(* Every RESULT is the sum of what all members of its generation sent for its packet number, each once. *)
RightSums ==
    \A result \in results :
        /\ result.words = {<<w, result.g, result.q>> : w \in members[result.g]}
        /\ result.added = Cardinality(members[result.g])

(* A worker takes RESULTs of its generation only. *)
OwnResults ==
    \A w \in Workers : \A q \in held[w] : \E result \in results : result.g = at[w] /\ result.q = q

(* A RESULT that was sent is in the slots, on the whole way, while a survivor needs it. *)
Answered ==
    \A w \in Survivors : at[w] = gen =>
        \A result \in results :
            result.g = gen /\ result.q \in (0 .. sent[w][gen] - 1) \ held[w] =>
                \A s \in {Root, SwitchOf(w)} : slot[s][result.q % P].q = result.q

(* All who went on from a generation have completed the same collectives in it, and all that any of them told. *)
Agreement ==
    /\ \A v, w \in Workers : \A g \in Generations :
        ended[v][g] >= 0 /\ ended[w][g] >= 0 => ended[v][g] = ended[w][g]
    /\ agreed >= 0 => \A w \in Survivors : said[w] <= agreed

(* After the last loss every survivor completes every collective. *)
Completes == []<>Finished
=============================================================================
