import { Command } from '@commander-js/extra-typings';
import { RatchetError } from '../../../core/errors.ts';
import { type Examined, examineStore } from '../../../runs/lineages/examine-store.ts';
import { repairRecord, setAside } from '../../../runs/lineages/repair-store.ts';
import type { RunPlace } from '../../../runs/run-access.ts';
import { connect, findRunning, findTemporal } from '../../../workers/temporal/client.ts';
import { ownerInFolder, requireRole } from '../../../workers/temporal/who-may.ts';
import { findRunFolder } from '../../stored/run-place.ts';
import { goOnFromHere } from '../../stored/stored-runs.ts';
import { storeOption, withStore } from '../../typed/store-option.ts';
import { print, printJson } from '../../output/print.ts';

export const fsckCommand = new Command('fsck')
  .description(
    "read everything in a run's folder, and say what cannot be read and what that means; exit code 1 if there is anything",
  )
  .argument('<run>')
  .option(
    '--repair',
    'set aside what the run cannot continue from: commits after the newest whole one, and records that can be made anew',
  )
  .option(...storeOption)
  .option('--json', 'as one JSON object')
  .action(async (run, options) => {
    const place = await findRunFolder(run, options.store, { asksTemporal: false });
    if (options.repair === true) await requireRole('fsck --repair', { of: 'run', run, owner: ownerInFolder(place) });
    const examined = await examineStore(place);
    const done = options.repair === true ? await repair(place, examined) : nothingDone;
    if (options.json) printJson({ run, ...examined, ...done }, 2);
    else {
      const goOn = done.moved.length > 0 ? await goOnFromHere(run, options.store) : null;
      const toRepair = withStore(`npx ratchet-rl fsck ${run} --repair`, options.store);
      print(describe(run, examined, done, { goOn, toRepair }).join('\n'));
    }
    if (faultsLeft(examined, done).length > 0) process.exitCode = 1;
  });

interface Repaired {
  /** New paths of the files that were moved away. */
  readonly moved: readonly string[];
  readonly repaired: readonly string[];
}
const nothingDone: Repaired = { moved: [], repaired: [] };

async function repair(place: RunPlace, examined: Examined): Promise<Repaired> {
  const { unreadableHead, faults } = examined;
  const records = faults.flatMap(({ key, repair: how }) => (how === null ? [] : [{ key, how }]));
  if (unreadableHead.length === 0 && records.length === 0) return nothingDone;
  await refuseRepair(place.name, examined);
  const moved = [...(await setAside(place, unreadableHead))];
  const repaired = moved.length > 0 ? [...unreadableHead] : [];
  // Settings come first: claims and metrics depend on them.
  for (const { key, how } of records.toSorted(
    (a, b) => Number(b.how === 'made again') - Number(a.how === 'made again'),
  )) {
    const to = await repairRecord(place, key, how);
    if (to === null) continue;
    moved.push(to);
    repaired.push(key);
  }
  return { moved, repaired };
}

async function refuseRepair(run: string, { whole, unreadableHead }: Examined): Promise<void> {
  if (whole === null && unreadableHead.length > 0) {
    throw new RatchetError(
      'Unsupported',
      `No commit of ${run} is whole: there is nothing that it could continue from. Restore its folder from a copy.`,
    );
  }
  const place = await findTemporal(process.cwd()).catch(() => null);
  if (!place) return;
  const { client, close } = await connect(place);
  try {
    if (!(await findRunning(client, run))) return;
  } finally {
    await close();
  }
  throw new RatchetError('Unsupported', `${run} is running. End it first: npx ratchet-rl stop ${run} --now`);
}

/** Faults that --repair has not removed. */
function faultsLeft({ faults }: Examined, { repaired }: Repaired): Examined['faults'] {
  return faults.filter(({ key }) => !repaired.includes(key));
}

function describe(
  run: string,
  examined: Examined,
  done: Repaired,
  { goOn, toRepair }: { readonly goOn: string | null; readonly toRepair: string },
): string[] {
  const { read, faults, unreadableHead, whole } = examined;
  const { moved, repaired } = done;
  const lines = faults.flatMap(({ key, problem, meaning }) => [`✗ ${key}`, `    ${problem}`, `    → ${meaning}`]);
  const left = faultsLeft(examined, done).length;
  const rest = moved.length === 0 ? 'all of them can be read ✓' : 'the rest can be read ✓';
  const found = left === 0 ? rest : `${left} cannot be relied on`;
  const goesOn = whole === null ? 'nothing is committed that is whole' : `step ${whole.step} of ${whole.lineage}`;
  const again = faults.filter(({ key, repair: how }) => how === 'made again' && repaired.includes(key));
  if (moved.length > 0) {
    lines.push(
      ...moved.map((key) => `set aside: ${key}`),
      ...again.map(({ key }) => `made again: ${key}`),
      ...(whole === null ? [] : [`${run} continues from ${goesOn}: ${goOn ?? 'npx ratchet-rl train FILE'}`]),
    );
  } else if (unreadableHead.length > 0) {
    lines.push(`the newest whole commit: ${goesOn}. To continue from there: ${toRepair}`);
  }
  return [...lines, `${read} files read: ${found}`];
}
