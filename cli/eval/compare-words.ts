import type { Comparison } from '../../core/eval/comparison.ts';

export function verdict({ low, high }: { readonly low: number; readonly high: number }): string {
  if (low === 0 && high === 0) return 'no difference';
  return low > 0 ? 'better beyond chance' : high < 0 ? 'worse beyond chance' : 'within what chance explains';
}

export function leftOutText(
  { onlyInA, onlyInB, otherPrompt, withoutReward }: Comparison['leftOut'],
  b = 'B',
): string[] {
  const parts = [
    ...(onlyInA > 0 ? [`${onlyInA} only in A`] : []),
    ...(onlyInB > 0 ? [`${onlyInB} only in ${b}`] : []),
    ...(otherPrompt.length > 0
      ? [`${otherPrompt.length} with another prompt under the same id (${ids(otherPrompt)})`]
      : []),
    ...(withoutReward.length > 0
      ? [`${withoutReward.length} without a reward in one of them (${ids(withoutReward)})`]
      : []),
  ];
  return parts.length === 0 ? [] : [`left out: ${parts.join(', ')}`];
}

function ids(list: readonly string[]): string {
  return `#${list.slice(0, 4).join(', #')}${list.length > 4 ? ', …' : ''}`;
}
