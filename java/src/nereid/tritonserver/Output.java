package nereid.tritonserver;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/** An output of a response: what TRITONSERVER_InferenceResponseOutput returns. */
public final class Output {
    public final String name;
    public final int datatype;
    public final long[] shape;
    public final long byte_size;
    public final int memory_type;
    public final long memory_type_id;
    /** As the allocator provided it; null for an output without bytes. */
    public final Memory memory;

    Output(String name, int datatype, long[] shape, long byte_size, int memory_type, long memory_type_id,
            Memory memory) {
        this.name = name;
        this.datatype = datatype;
        this.shape = shape;
        this.byte_size = byte_size;
        this.memory_type = memory_type;
        this.memory_type_id = memory_type_id;
        this.memory = memory;
    }

    /** The bytes, read-only, in the byte order of this machine. What the allocator does with them decides how long. */
    public ByteBuffer base() {
        if (memory == null) {
            return ByteBuffer.allocateDirect(0);
        }
        ByteBuffer bytes = memory.buffer();
        return bytes.limit((int) byte_size).slice().asReadOnlyBuffer().order(ByteOrder.nativeOrder());
    }
}
