import { inferenceTraits } from '../../../core/kinds/inference.ts';
import { trainers } from '../../../core/kinds/trainers.ts';
import { isTinkerLoss } from '../../models/tinker-spec.ts';
import type { RatchetConfig } from '../index.ts';
import { lossSpec } from '../learning.ts';
import { loraModules } from '../optimizer.ts';
import { tinkerServerOf } from '../tinker.ts';
import { problem, type Relations } from './problem.ts';
import { neutralSampling } from './sampling.ts';

/** Relations between a run's settings and the abilities of Tinker servers: refused here, before anything is started. */
export function* tinkerTrainerRelations(config: RatchetConfig): Relations {
  yield* trainerRelations(config);
  yield* adapterRelations(config);
}

export function* tinkerInferenceRelations(config: RatchetConfig): Relations {
  const { trainer, inference } = config;
  if (trainer.kind !== 'tinker') {
    const expected = 'another kind, or [trainer] kind = "tinker": such a server samples only what was trained there';
    yield problem(['inference.kind', 'trainer.kind'], expected, '"tinker"');
    return;
  }
  for (const key of ['url', 'endpoint_id', 'api_key_var'] as const) {
    if (inference[key] === undefined) continue;
    const expected = 'nothing: what samples is the server of [trainer], with its key';
    yield problem([`inference.${key}`, 'inference.kind'], expected, JSON.stringify(inference[key]));
  }
  yield* samplingRelations(config);
}

function* trainerRelations({ trainer, inference, sampling }: RatchetConfig): Relations {
  if (inferenceTraits(inference).engine === 'embedded') {
    const expected =
      '"tinker", or "vllm" with the same base model: the embedded engine does not have the weights that a Tinker server trains';
    yield problem(['inference.kind', 'trainer.kind'], expected, '"embedded"', '[inference] kind = "tinker"');
  }
  if (trainer.micro_batch_size !== undefined) {
    const expected = 'nothing: a Tinker server decides itself how many rows it computes at once';
    yield problem(['trainer.micro_batch_size', 'trainer.kind'], expected, trainer.micro_batch_size);
  }
  if (trainer.optimizer !== undefined && trainer.optimizer !== 'adamw') {
    const expected = '"adamw": a Tinker server has no other optimizer';
    yield problem(['trainer.optimizer', 'trainer.kind'], expected, `"${trainer.optimizer}"`);
  }
  if (trainer.loss.entropy_coef !== undefined) {
    const expected =
      'nothing: a Tinker server tells the log probabilities of tokens, not the distributions that entropy is of';
    yield problem(['trainer.loss.entropy_coef', 'trainer.kind'], expected, trainer.loss.entropy_coef);
  }
  if (sampling.temperature !== 1) {
    const expected =
      '1: a Tinker server trains log probabilities at temperature 1, so others would be of another policy';
    yield problem(['sampling.temperature', 'trainer.kind'], expected, sampling.temperature);
  }
}

const { alpha: onlyAlpha } = trainers.tinker;

/** Layers that such a server adapts together (`train_attn`, `train_mlp`). */
const moduleGroups = [
  ['q_proj', 'k_proj', 'v_proj', 'o_proj'],
  ['gate_proj', 'up_proj', 'down_proj'],
] as const;

function* adapterRelations(config: RatchetConfig): Relations {
  const { lora, lora_alpha } = config;
  const say = (path: string, expected: string, received: string | number | boolean | undefined) =>
    problem([path, 'trainer.kind'], expected, received);
  if (lora?.enabled === false) {
    if (tinkerServerOf(config).server !== 'tinker') return;
    yield say('lora.enabled', 'true: the hosted service trains adapters only', false);
  }
  for (const [path, alpha] of Object.entries({ 'lora.alpha': lora?.alpha, lora_alpha })) {
    const expected = `${onlyAlpha}, or nothing: a Tinker server scales its adapters by ${onlyAlpha} / r`;
    if ((alpha ?? onlyAlpha) !== onlyAlpha) yield say(path, expected, alpha);
  }
  const wanted: readonly string[] = lora?.target_modules ?? loraModules;
  const isHalved = moduleGroups.some((group) => {
    const found = group.filter((name) => wanted.includes(name)).length;
    return found > 0 && found < group.length;
  });
  if (isHalved) {
    const groups = moduleGroups.map((group) => group.join(', ')).join('; or of ');
    const expected = `all of ${groups}; or both: a Tinker server adapts attention and MLP each as a whole`;
    yield say('lora.target_modules', expected, JSON.stringify(wanted));
  }
  if ((lora?.dropout ?? 0) > 0) yield say('lora.dropout', '0: a Tinker server has no dropout', lora?.dropout);
}

/** vLLM's sampling parameters that Tinker servers lack. */
const unknownThere = ['min_p', 'repetition_penalty', 'presence_penalty', 'frequency_penalty', 'min_tokens'] as const;

function* samplingRelations({ env, eval: evaluation, sampling }: RatchetConfig): Relations {
  const tables = [
    { path: 'sampling', table: sampling },
    { path: 'eval.sampling', table: evaluation?.sampling },
    ...env.map((one, i) => ({ path: `env.${i}.sampling`, table: one.sampling })),
    ...(evaluation?.env ?? []).map((one, i) => ({ path: `eval.env.${i}.sampling`, table: one.sampling })),
  ];
  for (const { path, table = {} } of tables) {
    for (const key of unknownThere) {
      const [value, neutral] = [table[key], neutralSampling[key]];
      if (value === undefined || value === neutral) continue;
      const expected = `${neutral}, or nothing: a Tinker server samples by temperature, top_p and top_k alone`;
      yield problem([`${path}.${key}`, 'inference.kind'], expected, value);
    }
    if (!table.stop?.length) continue;
    const expected = 'nothing: turns end at the model’s own end tokens there';
    yield problem([`${path}.stop`, 'inference.kind'], expected, JSON.stringify(table.stop));
  }
}

/** Warns of differences between a Tinker server and the file. */
export function* tinkerWarnings(config: RatchetConfig): Iterable<string> {
  const { enabled = false, beta = 0 } = config.kl_penalty ?? {};
  const loss = lossSpec(config);
  if (config.max_steps > 0 && !isTinkerLoss(loss, enabled ? beta : 0)) {
    const beside = beta > 0 && enabled ? ' with [kl_penalty]' : loss.teacherTau > 0 ? ' with a teacher' : '';
    yield `trainer.loss ("${loss.type}"${beside}): such a server does not have it. It is computed here from the log probabilities of a forward pass, and the server takes its gradient in them: a third more work a step, the same update.`;
  }
  if (tinkerServerOf(config).server !== 'skyrl') return;
  yield `trainer.max_grad_norm (${config.trainer.max_grad_norm}) is told to the server; SkyRL 0.3.0 takes no notice of it and clips nothing.`;
  yield 'trainer.beta1, beta2, epsilon and weight_decay are told to the server. SkyRL’s FSDP and Megatron backends take no notice of them: what is ignored is measured before the first step, and the GPU worker’s log names it.';
  if (config.sft === undefined || config.max_steps === 0) return;
  yield '[sft]: SkyRL 0.3.0 restores the optimizer’s moments with the weights, whatever is asked: step 1 begins with those of the warm-up.';
}
