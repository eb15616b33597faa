/** What v0.4.0 says of itself. */
export const older = {
  version: '0.4.0',
  /** @type {string[]} */
  missing: [],
  structs: {
    TrainingSample: [
      'prompt_ids',
      'prompt_mask',
      'completion_ids',
      'completion_mask',
      'completion_logprobs',
      'completion_temperatures',
      'teacher_logprobs',
      'advantage',
      'reward',
      'pixel_values',
      'image_grid_thw',
    ],
    TrainingBatch: ['examples', 'step', 'run_idx'],
    MicroBatch: ['input_ids', 'loss_mask', 'advantages'],
  },
  markers: ['STABLE'],
  settings: {
    RLTrainerConfig: ['model', 'loss', 'optim', 'scheduler', 'ckpt', 'weight_broadcast', 'rollout_transport'],
  },
  types: {},
  /** @type {string[]} */
  mentioned: [],
};

/** What prime-rl's main branch of August 2026 says of itself (python/ratchet_prime_rl/look.py). */
export const installation = {
  version: '0.8.1.dev',
  /** @type {string[]} */
  missing: [],
  structs: {
    TrainingSample: ['token_ids', 'mask', 'logprobs', 'temperatures', 'env_name'],
    MicroBatch: [
      'input_ids',
      'loss_mask',
      'advantages',
      'inference_logprobs',
      'position_ids',
      'sequence_lengths',
      'temperatures',
      'env_names',
      'seq_lens',
      'ref_logprobs',
      'routed_experts',
      'mm_kwargs',
      'mm_token_type_ids',
      'rl_weights',
      'ce_weights',
      'ref_kl_weights',
    ],
  },
  markers: ['STABLE'],
  settings: {
    TrainerConfig: ['model', 'loss', 'optim', 'ckpt', 'resume', 'weight_broadcast', 'rollout_transport', 'max_steps'],
  },
  types: {},
  /** @type {string[]} */
  mentioned: [],
};
