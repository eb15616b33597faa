import { type GroupLease, isRewardedOutcome, type Rollout } from './rollout.ts';

/** Number of a batch's groups by environment and digest of their system prompt (`own` = the environment's). */
export type PromptsOfBatch = Readonly<Record<string, Readonly<Record<string, number>>>>;

/** A group, with the prompts that its rollouts report. */
type PlayedGroup = Pick<GroupLease, 'ordinal' | 'environment' | 'prompt'> & {
  readonly rollouts: readonly Pick<Rollout, 'index' | 'outcome' | 'prompt'>[];
};

/**
 * undefined if all have their environment's own prompt. Throws if rollouts of a group report another prompt than the
 * group.
 */
export function promptsOfBatch(groups: readonly PlayedGroup[]): PromptsOfBatch | undefined {
  for (const group of groups) requireOnePrompt(group);
  if (groups.every(({ prompt }) => prompt === undefined)) return undefined;
  const counts: Record<string, Record<string, number>> = {};
  for (const { environment, prompt = 'own' } of groups) {
    const own = (counts[environment] ??= {});
    own[prompt] = (own[prompt] ?? 0) + 1;
  }
  return counts;
}

/** A baseline over rollouts of two prompts would be invalid: such a group is a bug, and is not trained on. */
function requireOnePrompt({ ordinal, environment, prompt, rollouts }: PlayedGroup): void {
  const other = rollouts.find((rollout) => isRewardedOutcome(rollout.outcome) && rollout.prompt !== prompt);
  if (other === undefined) return;
  throw new Error(
    `Group ${ordinal} of ${environment} was leased with ${named(prompt)}, and its rollout ${other.index} was played with ${named(other.prompt)}.`,
  );
}

function named(prompt: string | undefined): string {
  return prompt === undefined ? "the environment's own prompt" : `the prompt ${prompt.slice(0, 16)}`;
}
