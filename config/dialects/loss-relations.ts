import type { RunSpec } from '../run-spec.ts';
import { lossTypeOf } from '../settings/learning.ts';
import type { RatchetConfig } from '../settings/index.ts';
import type { RelationProblem } from './ratchet-relations.ts';

/** What [trainer.loss] says, taken together. */

type WrittenLoss = Omit<RatchetConfig['trainer']['loss'], 'type'> & Pick<RunSpec['loss'], 'type'>;

export function lossRelations(config: RatchetConfig): RelationProblem[] {
  const { trainer } = config;
  const { clip_high } = trainer;
  const loss = { ...trainer.loss, type: lossTypeOf(config) };
  const problems: RelationProblem[] = [];
  const at = (key: string) => ['trainer', 'loss', key];
  if (loss.clip_high !== undefined && clip_high !== undefined && loss.clip_high !== clip_high) {
    problems.push({
      paths: [['trainer', 'clip_high'], at('clip_high')],
      expected: `one of them: [trainer.loss] clip_high is ${loss.clip_high}`,
      received: String(clip_high),
    });
  }
  const [low, high] = [loss.clip_low, loss.clip_high ?? clip_high];
  const isClipped = loss.type === 'grpo' || loss.type === 'gspo';
  if (isClipped && high !== undefined && high <= 1) {
    problems.push({
      paths: [at('clip_high'), ['trainer', 'clip_high']],
      expected: 'a number > 1: the largest ratio, 1 + ε',
      received: String(high),
      suggestion: `for ε = ${high} write ${1 + high}`,
    });
  }
  if (isClipped && low !== undefined && low >= 1) {
    problems.push({ paths: [at('clip_low')], expected: 'a number < 1: the least ratio, 1 − ε', received: String(low) });
  }
  if (loss.type === 'cispo' && low !== undefined && low !== 0) {
    problems.push({ paths: [at('clip_low')], expected: 'nothing: cispo has no lower clip', received: String(low) });
  }
  return [...problems, ...maskRelations(loss), ...importRelation(['trainer', 'loss'], loss)];
}

function maskRelations({
  type,
  aggregation,
  mask_low,
  mask_high,
  kl_tau,
  beta,
  dr_grpo_tokens,
}: WrittenLoss): RelationProblem[] {
  const isTrustRegion = type === 'dppo' || type === 'ipo';
  const at = (key: string) => ['trainer', 'loss', key];
  const problems: RelationProblem[] = [];
  for (const [key, value] of Object.entries({ mask_low, mask_high })) {
    if (value === undefined || type === 'importance_sampling' || isTrustRegion) continue;
    problems.push({
      paths: [at(key), at('type')],
      expected: 'type = "importance_sampling", "dppo" or "ipo" beside it: no other loss leaves tokens out',
      received: `type = "${type}"`,
    });
  }
  if (kl_tau !== undefined && !isTrustRegion) {
    problems.push({
      paths: [at('kl_tau'), at('type')],
      expected: 'type = "dppo" or "ipo" beside it; of other losses [kl_penalty] has the KL term',
      received: `type = "${type}"`,
    });
  }
  if (beta !== undefined && type !== 'dro') {
    problems.push({
      paths: [at('beta'), at('type')],
      expected: 'type = "dro" beside it; of other losses [kl_penalty] has a beta',
      received: `type = "${type}"`,
    });
  }
  if (!isTrustRegion && mask_low !== undefined && mask_high !== undefined && mask_low >= mask_high) {
    problems.push({
      paths: [at('mask_low'), at('mask_high')],
      expected: `a number < mask_high (${mask_high}): tokens are kept when mask_low ≤ ratio ≤ mask_high`,
      received: String(mask_low),
    });
  }
  if (dr_grpo_tokens !== undefined && aggregation !== 'dr_grpo') {
    problems.push({
      paths: [at('dr_grpo_tokens'), at('aggregation')],
      expected: 'aggregation = "dr_grpo" beside it: no other divides by it',
      received: aggregation === undefined ? 'nothing' : `aggregation = "${aggregation}"`,
    });
  }
  return problems;
}

/** `import` and a kind of the user's own go together. */
export function importRelation(
  path: readonly string[],
  { type, import: file }: { readonly type: string; readonly import?: string | undefined },
  own: { readonly key: string; readonly word: string; readonly file?: string } = { key: 'type', word: 'custom' },
): RelationProblem[] {
  if ((type === own.word) === (file !== undefined)) return [];
  const paths = [
    [...path, own.file ?? 'import'],
    [...path, own.key],
  ];
  if (file === undefined) {
    return [{ paths, expected: `a file with the code, because ${own.key} is "${own.word}"`, received: 'nothing' }];
  }
  return [{ paths, expected: `nothing, or ${own.key} = "${own.word}"`, received: JSON.stringify(file) }];
}
