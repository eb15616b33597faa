/** How weights of linear layers are kept for sampling. The policy that samples is then another than the one in training. */
export const quantizations = ['int8', 'int4'] as const;
export type Quantization = (typeof quantizations)[number];
