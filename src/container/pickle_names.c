/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of names.
 */
#include "pickle_names.h"

static const char complex_refusal[] =
    "is complex, which no weight here is; save the state dict without it",
                  quantized_refusal[] =
                      "is one of PyTorch's own quantized tensors (torch.ao.quantization); save "
                      "what its dequantize() gives",
                  sparse_refusal[] = "is sparse; save what its to_dense() gives",
                  empty_refusal[] = "is on the meta device and has no values; save the model after "
                                    "its weights were loaded",
                  nested_refusal[] = "is a nested tensor; save its parts one by one",
                  numpy_refusal[] =
                      "was saved on a device that PyTorch stores through NumPy; move it to the CPU "
                      "(.cpu()) before torch.save",
                  subclass_refusal[] = "is of a subclass of Tensor; save what its dequantize() "
                                       "gives, or torchao's as safetensors (save_pretrained does)",
                  fp4_refusal[] = "has pairs of 4-bit floats as elements; save it as bytes "
                                  "(.view(torch.uint8)), or save the model as safetensors";

static const nib_pickle_global globals[] = {
    {"collections", "OrderedDict", NIB_GLOBAL_DICT, NIB_TYPE_NONE, NULL},
    {"torch._utils", "_rebuild_tensor", NIB_GLOBAL_TENSOR, NIB_TYPE_NONE, NULL},
    {"torch._utils", "_rebuild_tensor_v2", NIB_GLOBAL_TENSOR, NIB_TYPE_NONE, NULL},
    {"torch._utils", "_rebuild_tensor_v3", NIB_GLOBAL_TENSOR, NIB_TYPE_NONE, NULL},
    {"torch._utils", "_rebuild_parameter", NIB_GLOBAL_PARAMETER, NIB_TYPE_NONE, NULL},
    {"torch._utils", "_rebuild_parameter_with_state", NIB_GLOBAL_PARAMETER, NIB_TYPE_NONE, NULL},
    {"torch", "FloatStorage", NIB_GLOBAL_STORAGE, NIB_TYPE_F32, NULL},
    {"torch", "HalfStorage", NIB_GLOBAL_STORAGE, NIB_TYPE_F16, NULL},
    {"torch", "BFloat16Storage", NIB_GLOBAL_STORAGE, NIB_TYPE_BF16, NULL},
    {"torch", "DoubleStorage", NIB_GLOBAL_STORAGE, NIB_TYPE_F64, NULL},
    {"torch", "CharStorage", NIB_GLOBAL_STORAGE, NIB_TYPE_I8, NULL},
    {"torch", "ByteStorage", NIB_GLOBAL_STORAGE, NIB_TYPE_U8, NULL},
    {"torch", "ShortStorage", NIB_GLOBAL_STORAGE, NIB_TYPE_I16, NULL},
    {"torch", "IntStorage", NIB_GLOBAL_STORAGE, NIB_TYPE_I32, NULL},
    {"torch", "LongStorage", NIB_GLOBAL_STORAGE, NIB_TYPE_I64, NULL},
    {"torch", "BoolStorage", NIB_GLOBAL_STORAGE, NIB_TYPE_BOOL, NULL},
    {"torch", "UntypedStorage", NIB_GLOBAL_STORAGE, NIB_TYPE_NONE, NULL},
    {"torch.storage", "UntypedStorage", NIB_GLOBAL_STORAGE, NIB_TYPE_NONE, NULL},
    {"torch", "float32", NIB_GLOBAL_TYPE, NIB_TYPE_F32, NULL},
    {"torch", "float16", NIB_GLOBAL_TYPE, NIB_TYPE_F16, NULL},
    {"torch", "bfloat16", NIB_GLOBAL_TYPE, NIB_TYPE_BF16, NULL},
    {"torch", "float64", NIB_GLOBAL_TYPE, NIB_TYPE_F64, NULL},
    {"torch", "int8", NIB_GLOBAL_TYPE, NIB_TYPE_I8, NULL},
    {"torch", "uint8", NIB_GLOBAL_TYPE, NIB_TYPE_U8, NULL},
    {"torch", "int16", NIB_GLOBAL_TYPE, NIB_TYPE_I16, NULL},
    {"torch", "uint16", NIB_GLOBAL_TYPE, NIB_TYPE_U16, NULL},
    {"torch", "int32", NIB_GLOBAL_TYPE, NIB_TYPE_I32, NULL},
    {"torch", "uint32", NIB_GLOBAL_TYPE, NIB_TYPE_U32, NULL},
    {"torch", "int64", NIB_GLOBAL_TYPE, NIB_TYPE_I64, NULL},
    {"torch", "uint64", NIB_GLOBAL_TYPE, NIB_TYPE_U64, NULL},
    {"torch", "bool", NIB_GLOBAL_TYPE, NIB_TYPE_BOOL, NULL},
    {"torch", "float8_e4m3fn", NIB_GLOBAL_TYPE, NIB_TYPE_E4M3, NULL},
    {"torch", "float8_e5m2", NIB_GLOBAL_TYPE, NIB_TYPE_E5M2, NULL},
    {"torch", "float8_e8m0fnu", NIB_GLOBAL_TYPE, NIB_TYPE_E8M0, NULL},
    {"torch", "float8_e4m3fnuz", NIB_GLOBAL_TYPE, NIB_TYPE_E4M3FNUZ, NULL},
    {"torch", "float8_e5m2fnuz", NIB_GLOBAL_TYPE, NIB_TYPE_E5M2FNUZ, NULL},
    {"torch", "Size", NIB_GLOBAL_OTHER, NIB_TYPE_NONE, NULL},
    {"torch", "device", NIB_GLOBAL_OTHER, NIB_TYPE_NONE, NULL},
    {"torch", "strided", NIB_GLOBAL_OTHER, NIB_TYPE_NONE, NULL},
    {"torch.serialization", "_get_layout", NIB_GLOBAL_OTHER, NIB_TYPE_NONE, NULL},
    {"torch", "float4_e2m1fn_x2", NIB_GLOBAL_REFUSED, NIB_TYPE_NONE, fp4_refusal},
    {"torch", "ComplexFloatStorage", NIB_GLOBAL_REFUSED, NIB_TYPE_NONE, complex_refusal},
    {"torch", "ComplexDoubleStorage", NIB_GLOBAL_REFUSED, NIB_TYPE_NONE, complex_refusal},
    {"torch", "QInt8Storage", NIB_GLOBAL_REFUSED, NIB_TYPE_NONE, quantized_refusal},
    {"torch", "QUInt8Storage", NIB_GLOBAL_REFUSED, NIB_TYPE_NONE, quantized_refusal},
    {"torch", "QInt32Storage", NIB_GLOBAL_REFUSED, NIB_TYPE_NONE, quantized_refusal},
    {"torch", "QUInt4x2Storage", NIB_GLOBAL_REFUSED, NIB_TYPE_NONE, quantized_refusal},
    {"torch", "QUInt2x4Storage", NIB_GLOBAL_REFUSED, NIB_TYPE_NONE, quantized_refusal},
    {"torch", "per_tensor_affine", NIB_GLOBAL_OTHER, NIB_TYPE_NONE, NULL},
    {"torch", "per_channel_affine", NIB_GLOBAL_OTHER, NIB_TYPE_NONE, NULL},
    {"torch._utils", "_rebuild_qtensor", NIB_GLOBAL_REFUSED, NIB_TYPE_NONE, quantized_refusal},
    {"torch._tensor", "_rebuild_from_type_v2", NIB_GLOBAL_REFUSED, NIB_TYPE_NONE, subclass_refusal},
    {"torch._utils", "_rebuild_wrapper_subclass", NIB_GLOBAL_REFUSED, NIB_TYPE_NONE,
     subclass_refusal},
    {"torch._utils", "_rebuild_sparse_tensor", NIB_GLOBAL_REFUSED, NIB_TYPE_NONE, sparse_refusal},
    {"torch._utils", "_rebuild_sparse_csr_tensor", NIB_GLOBAL_REFUSED, NIB_TYPE_NONE,
     sparse_refusal},
    {"torch._utils", "_rebuild_meta_tensor_no_storage", NIB_GLOBAL_REFUSED, NIB_TYPE_NONE,
     empty_refusal},
    {"torch._utils", "_rebuild_nested_tensor", NIB_GLOBAL_REFUSED, NIB_TYPE_NONE, nested_refusal},
    {"torch._utils", "_rebuild_device_tensor_from_numpy", NIB_GLOBAL_REFUSED, NIB_TYPE_NONE,
     numpy_refusal},
};

_Static_assert(COUNT(globals) <= 255, "a row's number fits a value");

const nib_pickle_global *nib__pickle_global_at(uint8_t i) { return &globals[i]; }

static bool same(const char *text, size_t size, const char *other)
{
    return strlen(other) == size && memcmp(text, other, size) == 0;
}

bool nib__pickle_global_find(uint8_t *out, const char *module, size_t module_size, const char *name,
                             size_t name_size)
{
    for (size_t i = 0; i < COUNT(globals); i++)
        if (same(module, module_size, globals[i].module) &&
            same(name, name_size, globals[i].name)) {
            *out = (uint8_t)i;
            return true;
        }
    return false;
}
