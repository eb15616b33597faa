import type { RatchetConfig } from '../index.ts';
import { lossSpec } from '../learning.ts';
import { problem, type Relations } from './problem.ts';

/** What prime-rl’s trainer does not have: refused here, before anything is started (backends/prime-rl/step-rows.ts refuses it again). */
export function* primeRlRelations(config: RatchetConfig): Relations {
  yield* neededRelations(config);
  yield* computingRelations(config);
  yield* stepRelations(config);
  yield* ownTableRelations(config);
}

function* neededRelations({ trainer, seq_len }: RatchetConfig): Relations {
  if (trainer.program === undefined) {
    const expected =
      'the checkout of prime-rl, or its Python: "/path/to/prime-rl" (`ratchet engine install prime-rl` says how to make it)';
    yield problem(['trainer.program', 'trainer.kind'], expected, undefined);
  }
  if (seq_len === undefined)
    yield problem(
      ['seq_len', 'trainer.kind'],
      'the tokens of the longest row: prime-rl packs rows into micro-batches of so many',
      undefined,
    );
}

function* computingRelations({ trainer }: RatchetConfig): Relations {
  const { ranks, gpu_ids: gpus, gpus: count, cp = 1, nodes, dtype, attn, use_liger } = trainer;
  const say = (key: string, expected: string, received: string | number | boolean | undefined) =>
    problem([`trainer.${key}`, 'trainer.kind'], expected, received);
  if (ranks !== undefined && gpus !== undefined && ranks !== gpus.length)
    yield problem(['trainer.ranks', 'trainer.gpu_ids'], `${gpus.length}, one for each of gpu_ids`, ranks);
  const all = (ranks ?? gpus?.length ?? count ?? 1) * nodes;
  if (all % cp !== 0) yield problem(['trainer.cp', 'trainer.ranks'], `a divisor of the ${all} ranks`, cp);
  if (dtype === 'float32')
    yield say('dtype', 'nothing, or "bfloat16": prime-rl computes in that', JSON.stringify(dtype));
  if (attn === 'eager') yield say('attn', 'a kind of flash attention, or "auto"', JSON.stringify(attn));
  if (use_liger === true) yield say('use_liger', 'false: prime-rl has kernels of its own', true);
}

function* stepRelations(config: RatchetConfig): Relations {
  const { trainer, kl_penalty } = config;
  const say = (key: string, expected: string, received: string | number | boolean | undefined) =>
    problem([key, 'trainer.kind'], `${expected} with prime-rl’s trainer`, received);
  for (const key of ['num_iterations', 'num_mini_batches'] as const)
    if (trainer[key] !== 1) yield say(`trainer.${key}`, '1: a batch is one optimizer step', trainer[key]);
  if (trainer.micro_batch_size !== undefined)
    yield say(
      'trainer.micro_batch_size',
      'nothing: rows are packed into micro-batches of seq_len tokens',
      trainer.micro_batch_size,
    );
  if (kl_penalty?.enabled === true) yield say('kl_penalty.enabled', 'false: there is no reference policy', true);
  if (trainer.decay_matrices_only === true)
    yield say('trainer.decay_matrices_only', 'false: weight_decay is of all weights', true);
  if (trainer.optimizer === 'muon' && trainer.epsilon !== 1e-8)
    yield say('trainer.epsilon', '1e-8 of "muon"', trainer.epsilon);
  const { type, import: file, entropy_coef, old_logprobs } = trainer.loss;
  if (file !== undefined || type === 'custom')
    yield say('trainer.loss.type', 'a loss that is not a file of yours', '"custom"');
  if (entropy_coef !== undefined) yield say('trainer.loss.entropy_coef', 'nothing', entropy_coef);
  if (old_logprobs === 'trainer')
    yield say('trainer.loss.old_logprobs', '"sampler": it reports no log probabilities', '"trainer"');
  const { correction } = trainer;
  const masks = ['token_mask', 'sequence_mask', 'geometric_mask', 'extreme_mask', 'divergence_mask'] as const;
  for (const mask of masks)
    if (correction?.[mask] !== undefined)
      yield say(
        `trainer.correction.${mask}`,
        'nothing: it reports no log probabilities to compare with the sampler’s',
        JSON.stringify(correction[mask]),
      );
  const loss = lossSpec(config);
  const isPlain = loss.teacherTau === 0 || (loss.teacherTau === 1 && loss.advantageTau === 0 && loss.type === 'ipo' && loss.maskLow === 0.2 && loss.maskHigh === null && loss.klTau === 1e-3); // prettier-ignore
  if (!isPlain)
    yield say(
      'trainer.loss.teacher_tau',
      '0, or `loss = "opd"` with the loss that prime-rl had for it until August 2026, type = "ipo", mask_low = 0.2, kl_tau = 0.001 and no ratio_max (of a file of prime-rl: --dialect prime-rl-0.9),',
      loss.teacherTau,
    );
}

/** Tables of its own file may not have what Ratchet decides: they would train something else, or elsewhere. */
const owned: readonly string[] = [
  'output_dir',
  'max_steps',
  'dist_timeout_seconds',
  'env_vars',
  'data',
  'loss',
  'optim',
  'scheduler',
  'ckpt',
  'resume',
  'rollout_transport',
  'weight_broadcast',
  'monitors',
  'log', // its figures are read there
  'tokenizer',
  'model.name',
  'model.seq_len',
  'model.lora',
  'model.vlm',
  'model.ep',
  'model.cp',
];

function* ownTableRelations({ trainer }: RatchetConfig): Relations {
  for (const path of owned) {
    const value = path.split('.').reduce<unknown>((at, key) => (typeof at === 'object' && at !== null ? (at as Record<string, unknown>)[key] : undefined), trainer.prime_rl); // prettier-ignore
    if (value === undefined) continue;
    const expected = 'nothing: the run file’s own settings decide it';
    yield problem([['trainer', 'prime_rl', ...path.split('.')], 'trainer.kind'], expected, JSON.stringify(value));
  }
}
