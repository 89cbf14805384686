// A library of one operator for ONNX Runtime: com.example:Triple, which multiplies numbers of FP32 by three.
//
// The functions of ONNX Runtime are called by their positions in its table, which later versions only append to.

#include <stddef.h>
#include <stdint.h>

typedef void (*Function)(void);

// OrtApiBase: the table of functions for a version of the interface, and the version of the library.
typedef struct {
    const Function *(*get_api)(uint32_t version);
    const char *(*get_version)(void);
} Base;

// OrtCustomOp, as far as version 16 of the interface defines it.
typedef struct Operator {
    uint32_t version;
    void *(*create)(const struct Operator *, const Function *api, const void *info);
    const char *(*name)(const struct Operator *);
    const char *(*provider)(const struct Operator *);
    int (*input_type)(const struct Operator *, size_t);
    size_t (*input_count)(const struct Operator *);
    int (*output_type)(const struct Operator *, size_t);
    size_t (*output_count)(const struct Operator *);
    void (*compute)(void *kernel, void *context);
    void (*destroy)(void *kernel);
    int (*input_characteristic)(const struct Operator *, size_t);
    int (*output_characteristic)(const struct Operator *, size_t);
    int (*input_memory)(const struct Operator *, size_t);
    int (*variadic_input_min)(const struct Operator *);
    int (*variadic_input_same)(const struct Operator *);
    int (*variadic_output_min)(const struct Operator *);
    int (*variadic_output_same)(const struct Operator *);
    void *(*create_v2)(void);
    void *(*compute_v2)(void);
    void *(*infer_shape)(void);
    int (*start_version)(const struct Operator *);
    int (*end_version)(const struct Operator *);
} Operator;

enum {
    CREATE_CUSTOM_OP_DOMAIN = 26,
    CUSTOM_OP_DOMAIN_ADD = 27,
    ADD_CUSTOM_OP_DOMAIN = 28,
    GET_TENSOR_MUTABLE_DATA = 51,
    GET_DIMENSIONS_COUNT = 61,
    GET_DIMENSIONS = 62,
    GET_TENSOR_TYPE_AND_SHAPE = 65,
    KERNEL_CONTEXT_GET_INPUT = 90,
    KERNEL_CONTEXT_GET_OUTPUT = 91,
    RELEASE_TENSOR_TYPE_AND_SHAPE_INFO = 99,
};
enum { FLOAT = 1, RANK_MAX = 8 };

static const Function *api;

static void compute(void *kernel, void *context) {
    (void)kernel;
    void *input = NULL, *output = NULL, *info = NULL;
    float *from = NULL, *to = NULL;
    int64_t dims[RANK_MAX];
    size_t rank = 0, count = 1;
    ((void *(*)(void *, size_t, void **))api[KERNEL_CONTEXT_GET_INPUT])(context, 0, &input);
    ((void *(*)(void *, void **))api[GET_TENSOR_TYPE_AND_SHAPE])(input, &info);
    ((void *(*)(void *, size_t *))api[GET_DIMENSIONS_COUNT])(info, &rank);
    if (rank > RANK_MAX) rank = RANK_MAX;
    ((void *(*)(void *, int64_t *, size_t))api[GET_DIMENSIONS])(info, dims, rank);
    ((void (*)(void *))api[RELEASE_TENSOR_TYPE_AND_SHAPE_INFO])(info);
    ((void *(*)(void *, size_t, const int64_t *, size_t, void **))api[KERNEL_CONTEXT_GET_OUTPUT])(
        context, 0, dims, rank, &output);
    ((void *(*)(void *, void **))api[GET_TENSOR_MUTABLE_DATA])(input, (void **)&from);
    ((void *(*)(void *, void **))api[GET_TENSOR_MUTABLE_DATA])(output, (void **)&to);
    for (size_t at = 0; at < rank; at++) count *= (size_t)dims[at];
    for (size_t at = 0; at < count; at++) to[at] = 3 * from[at];
}

static void *create(const Operator *self, const Function *table, const void *info) {
    (void)table, (void)info;
    return (void *)self;
}
static void destroy(void *kernel) { (void)kernel; }
static const char *name(const Operator *self) { return (void)self, "Triple"; }
static const char *provider(const Operator *self) { return (void)self, NULL; }
static int type(const Operator *self, size_t index) { return (void)self, (void)index, FLOAT; }
static size_t one(const Operator *self) { return (void)self, 1; }
static int required(const Operator *self, size_t index) { return (void)self, (void)index, 0; }
static int in_memory(const Operator *self, size_t index) { return (void)self, (void)index, 0; }
static int none(const Operator *self) { return (void)self, 0; }
static int first_version(const Operator *self) { return (void)self, 1; }
static int last_version(const Operator *self) { return (void)self, INT32_MAX; }

static const Operator TRIPLE = {
    .version = 16,
    .create = create,
    .name = name,
    .provider = provider,
    .input_type = type,
    .input_count = one,
    .output_type = type,
    .output_count = one,
    .compute = compute,
    .destroy = destroy,
    .input_characteristic = required,
    .output_characteristic = required,
    .input_memory = in_memory,
    .variadic_input_min = none,
    .variadic_input_same = none,
    .variadic_output_min = none,
    .variadic_output_same = none,
    .start_version = first_version,
    .end_version = last_version,
};

// The function that ONNX Runtime calls with the options of a session. The domain lives as long as the process.
__attribute__((visibility("default"))) void *RegisterCustomOps(void *options, const Base *base) {
    static void *domain;
    api = base->get_api(16);
    if (domain == NULL) {
        void *status = ((void *(*)(const char *, void **))api[CREATE_CUSTOM_OP_DOMAIN])("com.example", &domain);
        if (status == NULL) status = ((void *(*)(void *, const Operator *))api[CUSTOM_OP_DOMAIN_ADD])(domain, &TRIPLE);
        if (status != NULL) return status;
    }
    return ((void *(*)(void *, void *))api[ADD_CUSTOM_OP_DOMAIN])(options, domain);
}
