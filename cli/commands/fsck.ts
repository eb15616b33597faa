import { Command } from 'commander';
import { RatchetError } from '../../core/errors.ts';
import { type Examined, examineStore, setHeadAside } from '../../runs/examine-store.ts';
import { connect, findRunning, findTemporal } from '../connection.ts';
import { findRunFolder } from '../run-place.ts';
import { goOnFromHere } from '../stored-runs.ts';
import { storeOption } from '../store-option.ts';
import { print, printJson } from '../print.ts';

export const fsckCommand = new Command('fsck')
  .description(
    "read everything in a run's folder, and say what cannot be read and what that means; exit code 1 if there is anything",
  )
  .argument('<run>')
  .option('--repair', 'set commits aside that cannot be gone on from: the run goes on from the newest whole one')
  .option(...storeOption)
  .option('--json', 'as one JSON object')
  .action(async (run: string, options: { repair?: boolean; store?: string; json?: boolean }) => {
    const place = await findRunFolder(run, options.store, { asksTemporal: false });
    const examined = await examineStore(place);
    const repairs = options.repair === true && examined.unreadableHead.length > 0;
    if (repairs) await refuseRepair(run, examined);
    const moved = repairs ? await setHeadAside(place, examined.unreadableHead) : [];
    if (options.json) printJson({ run, ...examined, moved }, 2);
    else print(describe(run, examined, moved, await goOnFromHere(run, options.store)).join('\n'));
    if (faultsLeft(examined, moved).length > 0) process.exitCode = 1;
  });

async function refuseRepair(run: string, { whole }: Examined): Promise<void> {
  if (whole === null) {
    throw new RatchetError(
      'Unsupported',
      `No commit of ${run} is whole: there is nothing that it could go on from. Restore its folder from a copy, or start over: npx ratchet train FILE --fresh`,
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
  throw new RatchetError('Unsupported', `${run} is running. End it first: npx ratchet stop ${run} --now`);
}

/** What is set aside is no fault of the run any more. */
function faultsLeft({ faults, unreadableHead }: Examined, moved: readonly string[]): Examined['faults'] {
  return faults.filter(({ key }) => moved.length === 0 || !unreadableHead.includes(key));
}

function describe(run: string, examined: Examined, moved: readonly string[], goOn: string | null): string[] {
  const { read, faults, unreadableHead, whole } = examined;
  const lines = faults.flatMap(({ key, problem, meaning }) => [`✗ ${key}`, `    ${problem}`, `    → ${meaning}`]);
  const left = faultsLeft(examined, moved).length;
  const rest = moved.length === 0 ? 'all of them can be read ✓' : 'the rest can be read ✓';
  const found = left === 0 ? rest : `${left} cannot be relied on`;
  const goesOn = whole === null ? 'nothing is committed that is whole' : `step ${whole.step} of ${whole.lineage}`;
  if (moved.length > 0) {
    lines.push(...moved.map((key) => `set aside: ${key}`));
    lines.push(`${run} goes on from ${goesOn}: ${goOn ?? 'npx ratchet train FILE'}`);
  } else if (unreadableHead.length > 0) {
    lines.push(`the newest whole commit: ${goesOn}. To go on from there: npx ratchet fsck ${run} --repair`);
  }
  return [...lines, `${read} files read: ${found}`];
}
