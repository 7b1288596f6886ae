/* Loss on purpose, for experiments: a share of a port's packets, drawn by a hash of the port's seed and of the
   number of packets that it has seen, so that a run can be repeated. (v1model's random takes no seed.)

       links    port -> seed
       losses   port, range of draws (16 bits) -> lose */

control Loss(in port_t port, out bit<1> lost) {
    direct_counter(CounterType.packets) lost_packets;
    register<bit<32>>(512) packets;
    bit<16> drawn;

    action draw(bit<32> seed) {
        bit<32> number;
        packets.read(number, (bit<32>)port);
        packets.write((bit<32>)port, number + 1);
        hash(drawn, HashAlgorithm.crc32, 16w0, { seed, number }, 32w65536);
    }

    table links {
        key = {
            port: exact;
        }
        actions = {
            draw;
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        size = 512;
    }

    action lose() {
        lost = 1;
    }

    table losses {
        key = {
            port: exact;
            drawn: range;
        }
        actions = {
            lose;
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        counters = lost_packets;
        size = 512;
    }

    apply {
        lost = 0;
        drawn = 0;
        if (links.apply().hit) {
            losses.apply();
        }
    }
}
