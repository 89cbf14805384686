package nereid.tritonserver;

import java.nio.ByteBuffer;

/** A named value. */
public final class TRITONSERVER_Parameter extends Handle {
    TRITONSERVER_Parameter(long address, ByteBuffer bytes) {
        super(new ParameterState(address, bytes));
    }

    /** With the bytes that C reads, which live as long as the object. */
    private static final class ParameterState extends State {
        private ByteBuffer bytes;

        ParameterState(long address, ByteBuffer bytes) {
            super(address, Native::ParameterDelete, true);
            this.bytes = bytes;
        }

        @Override
        void deleted() {
            bytes = null;
        }
    }
}
