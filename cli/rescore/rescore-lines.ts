import type { RescoredEnvironment, RescoreResult } from '../../core/eval/rescore.ts';
import { aligned, counted, figure, placeOf } from '../eval/figures.ts';
import { inColumns } from '../output/in-columns.ts';
import { onOneLine } from '../output/plain-text.ts';
import { quote } from '../typed/typed-command.ts';

/** What a rescore came to, for people. */
export function describeRescored(result: RescoreResult, { mayFork }: { readonly mayFork: boolean }): string {
  const { name, rubric, rollouts, rescored, changed, judge, environments, folder } = result;
  const asked = judge.calls === 0 ? '' : ` · ${counted(judge.calls, 'judge call')}, ${judge.tokens} tokens`;
  const most = environments.flatMap(({ largest }) => largest);
  const where = placeOf({ where: folder });
  return [
    `${onOneLine(name)} · ${onOneLine(rubric)}: ${changed} of ${counted(rollouts, 'rollout')} with another reward${rescored === rollouts ? '' : `, ${rescored} were asked about`}${asked}`,
    ...aligned([['', 'rollouts', 'changed', 'before', 'after', 'rank', 'correlation', 'failed'], ...environments.map(rowOf)]).map((line) => `  ${line}`), // prettier-ignore
    ...(most.length === 0 ? [] : ['largest changes', ...largestOf(result).map((line) => `  ${line}`)]),
    `results  ${where}`,
    `look     npx ratchet-rl eval tui ${quote(where)}`,
    ...(mayFork && changed > 0 ? [`next     npx ratchet-rl fork ${quote(result.place.name)} --step N --name NEW --rewards ${result.id}`] : []), // prettier-ignore
  ].join('\n');
}

function rowOf(one: RescoredEnvironment): string[] {
  const { environment, rollouts, changed, before, after, rankAgreement, correlation, failedBefore, failedAfter } = one;
  return [
    onOneLine(environment),
    String(rollouts),
    String(changed),
    figure(before),
    figure(after),
    figure(rankAgreement),
    figure(correlation),
    failedBefore === failedAfter ? String(failedAfter) : `${failedBefore} → ${failedAfter}`,
  ];
}

const changesShown = 10;

function largestOf({ environments }: RescoreResult): string[] {
  const size = ({ before, after }: RescoredEnvironment['largest'][number]): number =>
    Math.abs((after ?? 0) - (before ?? 0));
  const all = environments.flatMap(({ largest }) => largest).toSorted((a, b) => size(b) - size(a));
  return inColumns(
    all
      .slice(0, changesShown)
      .map(({ environment, step, group, index, exampleId, before, after }) => [
        onOneLine(environment),
        step === null ? `example ${exampleId}` : `step ${step} group ${group}`,
        `rollout ${index}`,
        `${figure(before)} → ${figure(after)}`,
      ]),
  );
}
