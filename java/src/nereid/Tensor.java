package nereid;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.function.Function;

import nereid.tritonserver.Output;

/**
 * An output of a response. {@link #buffer} reads the response's own memory; the other methods copy. None works once the
 * response was closed.
 */
public final class Tensor {
    private final InferenceResponse response;
    private final Output output;
    /** What the program got of the memory. */
    private ByteBuffer shared;

    Tensor(InferenceResponse response, Output output) {
        this.response = response;
        this.output = output;
    }

    public String name() {
        return output.name;
    }

    public DataType dataType() {
        return DataType.of(output.datatype);
    }

    public long[] shape() {
        return output.shape.clone();
    }

    public long byteSize() {
        return output.byte_size;
    }

    /**
     * The bytes, without a copy: a direct, read-only buffer in the byte order of this machine. It keeps the memory from
     * being used again until the response is closed. Then it has no bytes left, and buffers that were made from it
     * (slice, duplicate, asFloatBuffer) read undefined bytes. Of a response that is never closed it stays as it is.
     */
    public ByteBuffer buffer() {
        synchronized (response) {
            response.mustBeOpen();
            if (shared == null) {
                if (output.memory instanceof MemoryPool.Pooled) {
                    ((MemoryPool.Pooled) output.memory).share();
                }
                shared = output.base();
            }
            return shared;
        }
    }

    /** Called by the response when it is closed. */
    void close() {
        if (shared != null) {
            shared.limit(0);
        }
        if (output.memory instanceof MemoryPool.Pooled) {
            ((MemoryPool.Pooled) output.memory).unshare();
        }
    }

    private <T> T read(Function<ByteBuffer, T> reader, DataType... types) {
        if (types.length > 0 && !Arrays.asList(types).contains(dataType())) {
            throw new IllegalArgumentException(
                    "output '" + name() + "' is " + dataType() + ", not " + Arrays.toString(types));
        }
        synchronized (response) {
            response.mustBeOpen();
            return reader.apply(output.base());
        }
    }

    /** The bytes of a tensor of any type. */
    public byte[] asBytes() {
        return read(buffer -> {
            byte[] bytes = new byte[buffer.remaining()];
            buffer.get(bytes);
            return bytes;
        });
    }

    /** INT32 or UINT32. */
    public int[] asInts() {
        return read(buffer -> {
            int[] values = new int[buffer.remaining() / Integer.BYTES];
            buffer.asIntBuffer().get(values);
            return values;
        }, DataType.INT32, DataType.UINT32);
    }

    /** INT64 or UINT64. */
    public long[] asLongs() {
        return read(buffer -> {
            long[] values = new long[buffer.remaining() / Long.BYTES];
            buffer.asLongBuffer().get(values);
            return values;
        }, DataType.INT64, DataType.UINT64);
    }

    /** INT16 or UINT16, or the bits of FP16 or BF16. */
    public short[] asShorts() {
        return read(buffer -> {
            short[] values = new short[buffer.remaining() / Short.BYTES];
            buffer.asShortBuffer().get(values);
            return values;
        }, DataType.INT16, DataType.UINT16, DataType.FP16, DataType.BF16);
    }

    public float[] asFloats() {
        return read(buffer -> {
            float[] values = new float[buffer.remaining() / Float.BYTES];
            buffer.asFloatBuffer().get(values);
            return values;
        }, DataType.FP32);
    }

    public double[] asDoubles() {
        return read(buffer -> {
            double[] values = new double[buffer.remaining() / Double.BYTES];
            buffer.asDoubleBuffer().get(values);
            return values;
        }, DataType.FP64);
    }

    public boolean[] asBooleans() {
        return read(buffer -> {
            boolean[] values = new boolean[buffer.remaining()];
            for (int at = 0; at < values.length; at++) {
                values[at] = buffer.get() != 0;
            }
            return values;
        }, DataType.BOOL);
    }

    /** The elements of BYTES. */
    public byte[][] asElements() {
        return read(Tensor::elements, DataType.BYTES);
    }

    /** The elements of BYTES as UTF-8. */
    public String[] asStrings() {
        return Arrays.stream(asElements())
                .map(element -> new String(element, StandardCharsets.UTF_8)).toArray(String[]::new);
    }

    private static byte[][] elements(ByteBuffer buffer) {
        buffer.order(ByteOrder.LITTLE_ENDIAN);
        var elements = new java.util.ArrayList<byte[]>();
        while (buffer.remaining() >= Integer.BYTES) {
            int size = buffer.getInt();
            if (size < 0 || size > buffer.remaining()) {
                throw new TritonException.Internal("the model returned strings whose lengths exceed the tensor");
            }
            byte[] element = new byte[size];
            buffer.get(element);
            elements.add(element);
        }
        return elements.toArray(new byte[0][]);
    }

    /** The label of a class, from the model's file of labels; null if there is none. */
    public String label(int classIndex) {
        return response.label(this, classIndex);
    }

    @Override
    public String toString() {
        return name() + " " + dataType() + Arrays.toString(output.shape);
    }
}
