"""Reference implementations of what the native worker does, for tests to compare it with, to the bit.

    plan       the words that open a collective
    schedule   the elements that each packet of a stream carries
    quantize   floats to lanes of words, and back
    stream     a whole collective, from the three above
    window     the sender's window
    link_end   a worker's end of a link through shared memory

On whole arrays and plain Python, made to be read. No I/O, except in `link_end`.
"""
