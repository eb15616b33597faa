import type { StepProgress } from '../../workflows/control/messages.ts';

/**
 * Groups being generated, by environment and age, and the share of the next batch that is ready; empty when nothing is
 * under way.
 */
export function describeInPlay({ inPlay, collecting }: Pick<StepProgress, 'inPlay' | 'collecting'>): string[] {
  const groups = inPlay.reduce((sum, one) => sum + one.groups, 0);
  const each = inPlay.map(
    ({ environment, groups, since, policyStep }) =>
      `${environment} ${groups}, the oldest since ${since} from v${policyStep}`,
  );
  return [
    ...(groups === 0 ? [] : [`in play       ${groups} ${groups === 1 ? 'group' : 'groups'}: ${each.join(' · ')}`]),
    ...(collecting === null || collecting.doing === 'nothing'
      ? []
      : [`ready         ${collecting.kept} of ${collecting.needed} groups for step ${collecting.step}`]),
  ];
}
