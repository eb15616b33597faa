/** How weights of linear layers are stored for sampling. The sampled policy then differs from the trained one. */
export const quantizations = ['int8', 'int4'] as const;
export type Quantization = (typeof quantizations)[number];
