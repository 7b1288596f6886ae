/* Loss on purpose, for experiments: see loss_v1model.p4, which draws the same. It takes three stages before the
   slot rules begin: compile it with AGG_WORDS 40 or less. */

control Loss(in port_t port, out bit<1> lost) {
    DirectCounter<bit<64>>(CounterType_t.PACKETS) lost_packets;
    Register<bit<32>, port_t>(512) packets;
    Hash<bit<16>>(HashAlgorithm_t.CRC32) mix;
    bit<32> number;
    bit<32> drawing_seed;
    bit<16> drawn;

    RegisterAction<bit<32>, port_t, bit<32>>(packets) count = {
        void apply(inout bit<32> seen, out bit<32> before) {
            before = seen;
            seen = seen + 1;
        }
    };

    action draw(bit<32> seed) {
        drawing_seed = seed;
        number = count.execute(port);
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
        lost_packets.count();
        lost = 1;
    }

    action keep() {
        lost_packets.count();
    }

    table losses {
        key = {
            port: exact;
            drawn: range;
        }
        actions = {
            lose;
            @defaultonly keep;
        }
        const default_action = keep();
        counters = lost_packets;
        size = 512;
    }

    apply {
        lost = 0;
        number = 0;
        drawing_seed = 0;
        if (links.apply().hit) {
            drawn = mix.get({ drawing_seed, number });
            losses.apply();
        }
    }
}
