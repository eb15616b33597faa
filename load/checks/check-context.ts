import { RatchetError } from '../../core/errors.ts';
import { vllmArgumentsOf } from '../../config/gpu-settings.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { formatPath, type KeyPath } from '../../config/toml/positions.ts';

/** Tokens of a model's longest context; null where unknown. */
interface KnownContext {
  readonly positionsMax: number | null;
}

interface ContextProblem {
  /** Names of the field, the first that is written first. */
  readonly at: readonly KeyPath[];
  readonly expected: string;
  readonly received: string;
}

/** `max_tokens` takes up the whole context of the model. */
export class ContextTooSmall extends RatchetError {
  readonly problems: readonly ContextProblem[];

  constructor(model: string, problems: readonly ContextProblem[]) {
    const [{ at, expected, received }] = problems as [ContextProblem];
    super('ConfigInvalid', `${formatPath(at[0]!)}: expected ${expected} (${model}), got ${received}.`);
    this.problems = problems;
  }
}

/** Warns of a context longer than the model's, with which vLLM does not start. */
export function contextWarning(
  run: Pick<RunSpec, 'inference' | 'requested'>,
  { positionsMax }: KnownContext,
): string | null {
  const { max_model_len: length } = vllmArgumentsOf(run);
  if (positionsMax === null || typeof length !== 'number' || length <= positionsMax) return null;
  return `max_model_len (${length}) is more than the ${positionsMax} tokens of the model’s context: vLLM does not start with it.`;
}

/**
 * Settings whose `max_tokens` takes up the whole context of the model: servers refuse a turn whose prompt and `max_tokens` do not fit together, so
 * no rollout could begin.
 */
export function contextProblems(
  { sampling, environments = [], eval: evaluation }: Partial<Pick<RunSpec, 'sampling' | 'environments' | 'eval'>>,
  { positionsMax }: KnownContext,
): ContextProblem[] {
  if (positionsMax === null || (environments.length === 0 && !evaluation)) return [];
  const shared = ['sampling', 'max_tokens'];
  const inEval = [['eval', ...shared], shared];
  const samplings: { sampling: RunSpec['sampling'] | null | undefined; at: KeyPath[] }[] = [
    { sampling, at: [shared] },
    ...environments.map((entry, i) => ({ sampling: entry.sampling, at: [['env', i, ...shared], shared] })),
    { sampling: evaluation?.sampling, at: inEval },
    ...(evaluation?.environments ?? []).map((entry, i) => ({
      sampling: entry.sampling,
      at: [['eval', 'env', i, ...shared], ...inEval],
    })),
  ];
  return samplings.flatMap(({ sampling: used, at }) =>
    used && used.contextTokens === undefined && used.maxTokens >= positionsMax
      ? [
          {
            at,
            expected: `less than the ${positionsMax} tokens of the model’s context, since the prompt needs room in it too`,
            received: String(used.maxTokens),
          },
        ]
      : [],
  );
}
