import { Command } from '@commander-js/extra-typings';
import type { EndedSandbox } from '../../../runs/sandboxes/lease-records.ts';
import { LeaseStore, type OpenLease } from '../../../runs/sandboxes/lease-store.ts';
import { resolveStoreUri } from '../../../store/index.ts';
import { inColumns } from '../../output/in-columns.ts';
import { onOneLine } from '../../output/plain-text.ts';
import { print, printJson } from '../../output/print.ts';
import { secondOf } from '../../output/second-of.ts';
import { defaultStore } from '../../stored/run-place.ts';
import { grantOption, storeOption } from '../../typed/store-option.ts';
import { sweep } from './sweep-sandboxes.ts';

const help = `
Each sandbox has a lease in the folder \`sandboxes\` beside the runs, written before the sandbox was made. A sweep ends what nobody owns:
its deadline passed, its worker or run has ended, or the request for it was never answered. Two at once do no harm.
`;

export const sandboxesCommand = new Command('sandboxes')
  .description('sandboxes of agents: who has one, what they took; end those that nobody owns')
  .addHelpText('after', help)
  .addCommand(
    new Command('list')
      .description('those that are leased, and what those that have ended took, by run')
      .option('--json', 'as a JSON object')
      .option(...storeOption)
      .action(list),
    { isDefault: true },
  )
  .addCommand(
    new Command('sweep')
      .description('end those that nobody owns')
      .option('--schedule', 'also from now on: a Temporal Schedule does it each minute, without any run')
      .option(...storeOption)
      .option(...grantOption)
      .action(sweep),
  );

async function list({ json, store }: { readonly json?: true; readonly store?: string }): Promise<void> {
  const leases = new LeaseStore(resolveStoreUri(store ?? defaultStore, process.cwd()));
  const [open, pools] = [await leases.readOpen(), await leases.pools()];
  const days = await leases.endedDays();
  const ended = (await Promise.all(days.map((day) => leases.ended(day)))).flat();
  const byRun = sumByRun(ended);
  if (json) return printJson({ open, ended: byRun });
  const kindOf = (pool: string): string => pools.get(pool)?.kind ?? pool;
  if (open.length === 0) print('no sandbox is leased');
  else
    print(
      inColumns([['NAME', 'KIND', 'STATE', 'OWNER', 'SINCE', 'UNTIL'], ...open.map((one) => rowOf(one, kindOf))]).join(
        '\n',
      ),
    );
  if (byRun.length === 0) return;
  const rows = byRun.map(({ run, sandboxes, seconds, cost }) => [
    onOneLine(run),
    String(sandboxes),
    seconds.toFixed(0),
    cost.toFixed(2),
  ]);
  print(`\n${inColumns([['RUN', 'ENDED', 'SECONDS', 'COST'], ...rows]).join('\n')}`);
}

function rowOf({ lease, creating, live }: OpenLease, kindOf: (pool: string) => string): string[] {
  const { owner, deadlineAtMs } = live ?? lease;
  const state = live ? 'in use' : creating ? 'asked for' : 'waits';
  const rollout = [owner.run, owner.group, owner.index].filter((part) => part !== undefined).join(' ');
  return [lease.name, kindOf(lease.pool), owner.run === 'warm' && !live ? 'ready' : state, onOneLine(rollout), secondOf(lease.createdAtMs), secondOf(deadlineAtMs)]; // prettier-ignore
}

interface OfRun {
  readonly run: string;
  readonly sandboxes: number;
  readonly seconds: number;
  readonly cost: number;
}

function sumByRun(ended: readonly EndedSandbox[]): readonly OfRun[] {
  const sums = new Map<string, OfRun>();
  for (const { owner, seconds, cost } of ended) {
    const sum = sums.get(owner.run) ?? { run: owner.run, sandboxes: 0, seconds: 0, cost: 0 };
    sums.set(owner.run, {
      ...sum,
      sandboxes: sum.sandboxes + 1,
      seconds: sum.seconds + seconds,
      cost: sum.cost + cost,
    });
  }
  return [...sums.values()];
}
