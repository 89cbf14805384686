package nereid.tritonserver;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/** Memory for an output: the bytes between position and limit of a direct buffer, which stays alive as long as this. */
public class Memory {
    final ByteBuffer buffer;
    final long address;

    public Memory(ByteBuffer buffer) {
        if (!buffer.isDirect() || buffer.isReadOnly()) {
            throw new IllegalArgumentException("memory for an output must be a direct buffer that can be written to");
        }
        this.buffer = buffer.slice().order(ByteOrder.nativeOrder());
        address = Callbacks.address(this.buffer);
    }

    /** Of new bytes. */
    public static Memory allocate(int byteSize) {
        return new Memory(ByteBuffer.allocateDirect(byteSize));
    }

    /** The bytes, in the byte order of this machine. */
    public final ByteBuffer buffer() {
        return buffer.duplicate().order(ByteOrder.nativeOrder());
    }

    /** Of the first byte, as C sees it. */
    public final long address() {
        return address;
    }

    public final int byteSize() {
        return buffer.capacity();
    }
}
