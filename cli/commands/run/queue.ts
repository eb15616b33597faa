import { Command } from '@commander-js/extra-typings';
import type { FoundPool } from '../../../core/fleet/pool-types.ts';
import { askPools } from '../../../workers/temporal/ask-pools.ts';
import { inColumns } from '../../output/in-columns.ts';
import { onOneLine } from '../../output/plain-text.ts';
import { print, printJson } from '../../output/print.ts';
import { secondOf } from '../../output/second-of.ts';
import { withTemporal } from '../../temporal/with-temporal.ts';

export const queueCommand = new Command('queue')
  .description('the pools of this Temporal server: who holds which trainer, who waits for one and why, shares of teams')
  .argument('[pool]', 'only this pool')
  .option('--json', 'as a JSON array, one object for each pool')
  .action(async (pool, { json = false }) => {
    const found = await withTemporal((client) => askPools(client, pool));
    if (json) printJson(found, 2);
    else if (found.length === 0) print(pool === undefined ? noPools : `no pool ${pool} is open; ${noPools}`);
    else for (const line of found.flatMap(linesOf)) print(line);
  });

const noPools =
  'a pool begins with the first worker that joins it (npx ratchet-rl worker --role train --pool NAME), or the first run whose [queue] names it';

/** The lines that `ratchet queue` prints for a pool. */
export function linesOf(found: FoundPool): string[] {
  if ('trouble' in found) return [`pool ${found.pool}: no orchestrator answers for it (${onOneLine(found.trouble)})`];
  const { pool, settings, trainers, waiting, teams, gone, workers, played } = found;
  const held = trainers.filter(({ run }) => run !== null).length;
  const atWork = workers.filter(({ plays }) => plays.length > 0).length;
  const lost = gone.length === 0 ? '' : `, ${gone.length} gone`;
  return [
    `pool ${pool}: ${trainers.length} ${trainers.length === 1 ? 'trainer' : 'trainers'}, ${held} held${lost}; ${workers.length} rollout ${workers.length === 1 ? 'worker' : 'workers'}, ${atWork} at work; ${waiting.length} ${waiting.length === 1 ? 'run waits' : 'runs wait'}; turns of ${settings.slice} s`,
    ...inColumns(
      trainers.map(({ trainer, labels, run, since, giveBack }) => [
        `  ${trainer}`,
        labelsText(labels),
        gone.includes(trainer) ? 'gone' : run === null ? 'free' : `${run} since ${secondOf(since!)}`,
        giveBack === null ? '' : `asked for: ${giveBack.why}`,
      ]),
    ),
    ...inColumns(
      waiting.map(({ run, team, priority, since, why }, i) => [
        `  ${i + 1}. ${run}`,
        `team ${team}`,
        `priority ${priority}`,
        `since ${secondOf(since)}`,
        why,
      ]),
    ),
    ...inColumns(
      played.map(({ workflow, kind, since, waitsFor }) => [
        `  ${workflow}`,
        kind,
        `since ${secondOf(since)}`,
        waitsFor === null ? 'plays' : `waits: ${waitsFor}`,
      ]),
    ),
    ...inColumns(
      teams.map(({ team, holds, waits, quota, weight, share }) => [
        `  team ${team}`,
        `holds ${holds}${quota === null ? '' : ` of ${quota}`}`,
        `waits ${waits}`,
        `weight ${weight}`,
        share === null ? '' : `${(100 * share).toFixed(0)} % of the time held`,
      ]),
    ),
  ].map(onOneLineKeepingIndent);
}

function labelsText(labels: Readonly<Record<string, string>>): string {
  return Object.entries(labels)
    .map(([name, value]) => `${name}=${value}`)
    .join(' ');
}

function onOneLineKeepingIndent(line: string): string {
  const indent = /^ */.exec(line)![0];
  return indent + onOneLine(line.slice(indent.length));
}
