// The core library: what every P4_16 architecture has (P4_16 language specification, appendix D).

#ifndef _CORE_P4_
#define _CORE_P4_

error {
    NoError,
    PacketTooShort,         // extract or lookahead beyond the end of the packet
    NoMatch,                // no case of a select matches
    StackOutOfBounds,       // next or last beyond a header stack
    HeaderTooShort,         // a varbit that is longer than its declaration
    ParserTimeout,
    ParserInvalidArgument   // such as a varbit length that is not whole bytes
}

match_kind {
    exact,
    ternary,
    lpm
}

extern packet_in {
    // Reads a header of fixed size, and makes it valid.
    void extract<T>(out T hdr);
    // The same for a header with one varbit, of so many bits.
    void extract<T>(out T variableSizeHeader, in bit<32> variableFieldSizeInBits);
    T lookahead<T>();
    void advance(in bit<32> sizeInBits);
    // Bytes of the whole packet.
    bit<32> length();
}

extern packet_out {
    // Writes a valid header, each one of a stack, struct or union; nothing for an invalid one.
    void emit<T>(in T hdr);
}

// Ends the parser with an error unless the condition holds.
extern void verify(in bool check, in error toSignal);

// For tables that have nothing to do where nothing matches.
@noWarn("unused")
action NoAction() {}

extern bool static_assert(bool check, string message);
extern bool static_assert(bool check);

#endif
