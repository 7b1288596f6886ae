"""The software switch: the slot machine in C++, served on a UDP socket of this host.

    switch.py     `Switch`, what a Python program holds          faults.py   what a bad network is made of
    native/       slot table and its vector kernels, packet loop, and the devices round the socket:

        packet loop  <->  capture (pcap)  <->  faults  <->  UDP socket (GSO, GRO)

Linux only.
"""
