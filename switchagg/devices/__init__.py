"""Ways of packets past the kernel's stack, for workers and switches alike: AF_XDP and DPDK."""
