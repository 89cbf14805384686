package nereid;

import java.nio.ByteBuffer;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.atomic.AtomicLong;

import nereid.tritonserver.Memory;

/**
 * Direct memory that is used again: the JVM is slow to allocate it, and frees it only when it collects garbage. Memory
 * that is not used again is left to the garbage collector, so nothing that a program reads is ever unmapped.
 */
final class MemoryPool {
    /** Bytes that are kept at most for later use: a quarter of the heap's bound, which is that of direct memory too. */
    private static final long KEPT_BYTES_MAX = Runtime.getRuntime().maxMemory() / 4;
    private static final int SMALLEST = 64;

    /** By size: each power of two has four steps, so that at most a quarter is unused. */
    private static final Shelf[] SHELVES = new Shelf[4 * 32];
    private static final AtomicLong KEPT_BYTES = new AtomicLong();

    static {
        for (int at = 0; at < SHELVES.length; at++) {
            SHELVES[at] = new Shelf();
        }
    }

    private MemoryPool() {
    }

    private static final class Shelf extends ConcurrentLinkedDeque<Pooled> {
        private static final long serialVersionUID = 1;
    }

    /** Memory of the pool. */
    static final class Pooled extends Memory {
        private final int shelf;
        /** A program reads it through a buffer that it has, and that nothing can take from it. */
        private volatile boolean isShared;

        private Pooled(int byteSize, int shelf) {
            super(ByteBuffer.allocateDirect(byteSize));
            this.shelf = shelf;
        }

        /** Keeps the memory from being used again. */
        void share() {
            isShared = true;
        }

        /** The program has no more use of it. */
        void unshare() {
            isShared = false;
        }
    }

    static Pooled take(long byteSize) {
        if (byteSize > Integer.MAX_VALUE) {
            throw new TritonException.Unsupported(
                    "a tensor of " + byteSize + " bytes does not fit a ByteBuffer, which has at most 2147483647");
        }
        int shelf = shelfOf((int) byteSize);
        Pooled memory = SHELVES[shelf].pollFirst();
        if (memory == null) {
            return new Pooled(sizeOf(shelf), shelf);
        }
        KEPT_BYTES.addAndGet(-memory.byteSize());
        return memory;
    }

    /** Keeps memory for later use, unless it is shared or there is much already. */
    static void giveBack(Pooled memory) {
        if (memory.isShared) {
            return;
        }
        if (KEPT_BYTES.addAndGet(memory.byteSize()) > KEPT_BYTES_MAX) {
            KEPT_BYTES.addAndGet(-memory.byteSize());
            return;
        }
        SHELVES[memory.shelf].addFirst(memory);
    }

    /** The first shelf whose memory is large enough. */
    static int shelfOf(int byteSize) {
        int size = Math.max(byteSize, SMALLEST);
        int power = 31 - Integer.numberOfLeadingZeros(size);
        int shelf = 4 * power + ((size - (1 << power)) >> (power - 2));
        return sizeOf(shelf) >= size ? shelf : shelf + 1;
    }

    /** The largest has what a ByteBuffer can have. */
    static int sizeOf(int shelf) {
        int power = shelf / 4;
        long size = (1L << power) + (shelf % 4) * (1L << (power - 2));
        return (int) Math.min(size, Integer.MAX_VALUE);
    }
}
