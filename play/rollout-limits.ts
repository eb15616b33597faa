import { RatchetError } from '../core/errors.ts';
import type { Turn } from '../core/rl/rollout/rollout.ts';
import type { EnvironmentSpec, RunSpec } from '../config/run-spec.ts';
import type { TimeoutFate } from '../core/settings/environments.ts';
import type { Policy } from '../backends/environments/types.ts';
import type { PlayedPolicy } from './policy/sample-policy.ts';

type Limited = Pick<EnvironmentSpec, 'python' | 'limits'>;
/** Limits on turns and tokens, as far as they are set. */
type TurnLimits = Partial<Record<'maxTurns' | 'maxInputTokens' | 'maxOutputTokens' | 'maxTotalTokens', number | null>>;

/**
 * The policy of an environment whose config limits its rollouts: a turn beyond a limit is refused like an overlong
 * prompt, which ends the rollout as `truncated`. verifiers' own limits apply where it has them, since environments may
 * read them.
 */
export function withinLimits(policy: PlayedPolicy, { python, limits }: Limited): PlayedPolicy {
  const bounds: TurnLimits =
    limits === undefined || python?.api === 'v1' ? {} : python ? { ...limits, maxTurns: null } : limits;
  if (Object.values(boundsOnly(bounds)).every((bound) => bound === null)) return policy;
  let reached: RatchetError | undefined = undefined;
  let underWay = 0;
  return {
    get turns() {
      return policy.turns;
    },
    get earlier() {
      return policy.earlier ?? [];
    },
    ...tokensOfPolicy(policy),
    get failure() {
      return reached ?? policy.failure;
    },
    async sample(messages, options) {
      const why = limitReached(policy.turns, bounds, underWay);
      if (why !== null) {
        reached = new RatchetError('PromptTooLong', why);
        throw reached;
      }
      underWay += 1;
      try {
        return await policy.sample(messages, options);
      } finally {
        underWay -= 1;
      }
    },
  };
}

/** What a policy says of its tokens and keeps of earlier calls, for another around it. */
export function tokensOfPolicy(policy: Policy): Pick<Policy, 'tokenTexts' | 'countTokens' | 'keep'> {
  return {
    ...(policy.keep && { keep: (ids) => policy.keep!(ids) }),
    ...(policy.tokenTexts && { tokenTexts: (...asked) => policy.tokenTexts!(...asked) }),
    ...(policy.countTokens && { countTokens: (...asked) => policy.countTokens!(...asked) }),
  };
}

/** Fate of a training rollout of this environment that is not finished in time. */
export function timeoutFateOf(
  { limits }: Pick<EnvironmentSpec, 'limits'>,
  { onTimeout }: Pick<RunSpec, 'onTimeout'>,
): TimeoutFate {
  return limits?.onTimeout ?? onTimeout;
}

function boundsOnly({ maxTurns, maxInputTokens, maxOutputTokens, maxTotalTokens }: TurnLimits): TurnLimits {
  const all = { maxTurns, maxInputTokens, maxOutputTokens, maxTotalTokens };
  return Object.fromEntries(Object.entries(all).map(([name, bound]) => [name, bound ?? null]));
}

/** Description of the first limit that the turns so far, with those that are under way, have reached; null without one. */
export function limitReached(turns: readonly Turn[], bounds: TurnLimits, underWay = 0): string | null {
  const { maxTurns, maxInputTokens, maxOutputTokens, maxTotalTokens } = bounds;
  const { fed, said } = tokensOf(turns);
  const found = [
    ['max_turns', turns.length + underWay, maxTurns],
    ['max_input_tokens', fed, maxInputTokens],
    ['max_output_tokens', said, maxOutputTokens],
    ['max_total_tokens', fed + said, maxTotalTokens],
  ].find(([, count, bound]) => typeof bound === 'number' && Number(count) >= bound);
  return found === undefined ? null : `The rollout has reached ${found[0]} = ${found[2]}: it is at ${found[1]}.`;
}

/** Input and output tokens; a prefix shared with the turn that it follows counts once. */
function tokensOf(turns: readonly Turn[]): { readonly fed: number; readonly said: number } {
  let [fed, said] = [0, 0];
  const called = new Map(turns.flatMap((turn) => (turn.call ? [[turn.call.id, turn]] : [])));
  for (const [i, { promptTokenIds, tokenIds, call }] of turns.entries()) {
    const before = call === undefined ? turns[i - 1] : called.get(call.after ?? '');
    const known = before === undefined ? [] : [...before.promptTokenIds, ...before.tokenIds];
    fed += promptTokenIds.length - sharedStart(known, promptTokenIds);
    said += tokenIds.length;
  }
  return { fed, said };
}

function sharedStart(a: readonly number[], b: readonly number[]): number {
  const end = Math.min(a.length, b.length);
  for (let i = 0; i < end; i++) if (a[i] !== b[i]) return i;
  return end;
}
