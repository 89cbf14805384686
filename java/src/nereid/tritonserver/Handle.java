package nereid.tritonserver;

import java.lang.ref.Cleaner;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.LongConsumer;

/**
 * An object of the server that this program holds. A call with a handle that was given back throws
 * IllegalStateException. An object that is in use, by a call or by an object that needs it, is deleted behind its last
 * use. A handle that is dropped without being given back is given back once it was collected.
 */
public abstract class Handle implements AutoCloseable {
    private static final Cleaner CLEANER = Cleaner.create();

    final State state;
    private final Cleaner.Cleanable cleanable;

    Handle(State state) {
        this.state = state;
        cleanable = CLEANER.register(this, state::close);
    }

    Handle(long address, LongConsumer delete, boolean isShared, Handle parent) {
        this(new State(address, delete, isShared, parent == null ? null : parent.state));
    }

    /** Gives the object back. A second call does nothing. */
    @Override
    public void close() {
        delete(false);
    }

    /** Whether it was given back. */
    public final boolean isClosed() {
        return state.isClosed();
    }

    /** Gives the object back, and throws if it already was. */
    final void delete() {
        delete(true);
    }

    private void delete(boolean mustBeOpen) {
        boolean wasOpen = state.close();
        cleanable.clean();
        if (mustBeOpen && !wasOpen) {
            throw gone(getClass());
        }
        state.check();
    }

    /** The address, for one call; each needs an exit. */
    final long enter() {
        if (!state.enter()) {
            throw gone(getClass());
        }
        return state.address;
    }

    final void exit() {
        state.exit();
    }

    static IllegalStateException gone(Class<?> kind) {
        return new IllegalStateException("the " + kind.getSimpleName() + " was deleted");
    }

    /** What of a handle outlives it: the address, and how many use it. */
    static class State {
        /** In `uses`: given back, and deleted behind the last use. */
        private static final long CLOSED = Long.MIN_VALUE;

        final long address;
        private final LongConsumer delete;
        private final ReentrantLock turn;
        private final State[] parents;
        private final AtomicLong uses = new AtomicLong();
        private final AtomicBoolean isDeleted = new AtomicBoolean();
        /** Of the deletion, for the thread that asked for it. */
        private volatile RuntimeException failure;

        State(long address, LongConsumer delete, boolean isShared, State... parents) {
            this.address = address;
            this.delete = delete;
            this.turn = isShared ? null : new ReentrantLock();
            this.parents = parents == null ? new State[0] : parents;
            for (State parent : this.parents) {
                if (parent != null) {
                    parent.hold();
                }
            }
        }

        /** Begins a call, in turn where the object is for one thread at a time. */
        final boolean enter() {
            if (turn != null) {
                turn.lock();
            }
            if (retain()) {
                return true;
            }
            if (turn != null) {
                turn.unlock();
            }
            return false;
        }

        final void exit() {
            if (turn != null) {
                turn.unlock();
            }
            release();
        }

        /** Keeps the object from being deleted. False, without effect, for one that was given back. */
        final boolean retain() {
            if (uses.getAndIncrement() >= 0) {
                return true;
            }
            release();
            return false;
        }

        /** The same for a caller that has a use already, also of an object that was given back. */
        final void hold() {
            uses.getAndIncrement();
        }

        final void release() {
            if (uses.decrementAndGet() == CLOSED) {
                deleteOnce();
            }
        }

        /** True for the first call. */
        final boolean close() {
            long before = uses.getAndUpdate(count -> count | CLOSED);
            if (before == 0) {
                deleteOnce();
            }
            return before >= 0;
        }

        final boolean isClosed() {
            return uses.get() < 0;
        }

        private void deleteOnce() {
            if (isDeleted.compareAndSet(false, true)) {
                run(this::deleteNow);
            }
        }

        private void deleteNow() {
            try {
                delete.accept(address);
            } catch (RuntimeException error) {
                failure = error;
            }
            deleted();
            for (State parent : parents) {
                if (parent != null) {
                    parent.release();
                }
            }
        }

        /** Where a deletion runs. */
        void run(Runnable deletion) {
            deletion.run();
        }

        /** Called behind the deletion. */
        void deleted() {
        }

        /** Throws what the deletion failed with, once. */
        final void check() {
            RuntimeException error = failure;
            failure = null;
            if (error != null) {
                throw error;
            }
        }
    }
}
