package nereid;

import static nereid.tritonserver.tritonserver.*;

/** Types of tensors, in the order of their numbers in the C interface. */
public enum DataType {
    INVALID, BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, FP32, FP64, BYTES, BF16;

    private static final DataType[] ALL = values();

    /** TRITONSERVER_TYPE_… */
    public int number() {
        return ordinal();
    }

    /** Of an element; 0 for BYTES, whose elements are each a length of four bytes and as many bytes. */
    public int byteSize() {
        return TRITONSERVER_DataTypeByteSize(number());
    }

    static DataType of(int number) {
        return number >= 0 && number < ALL.length ? ALL[number] : INVALID;
    }
}
