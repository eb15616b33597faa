import { Command } from '@commander-js/extra-typings';
import { encodeRanges } from '../../../core/rl/ledger.ts';
import { type CheckpointList, listCheckpoints } from '../../../runs/versions/list-checkpoints.ts';
import { findRunFolder } from '../../stored/run-place.ts';
import { storeOption } from '../../typed/store-option.ts';
import { print, printJson } from '../../output/print.ts';

export const checkpointsCommand = new Command('checkpoints')
  .description('every checkpoint of a run, compared with its sha256, and what it can be used for')
  .argument('<run>')
  .option(...storeOption)
  .option('--json', 'as one JSON object')
  .action(async (run, options) => {
    const list = await listCheckpoints(await findRunFolder(run, options.store));
    if (options.json) printJson(list, 2);
    else print(describeCheckpoints(list).join('\n'));
  });

function describeCheckpoints({ current, head, checkpoints, reachable }: CheckpointList): string[] {
  if (head === null) return ['nothing is committed yet'];
  const rows = checkpoints.map(({ step, lineage, state, bytes, digest, usableFor, problem }) =>
    [
      `step ${step}`.padEnd(10),
      lineage.padEnd(6),
      state.padEnd(9),
      (bytes === 0 ? '' : `${(bytes / 1e6).toFixed(1)} MB`).padStart(10),
      digest.slice(0, 12).padEnd(12),
      problem ?? usableFor.join(', '),
    ].join('  '),
  );
  return [
    ...rows,
    `head: step ${head} of ${current}; a rewind can continue from step ${encodeRanges(reachable) || 'none'}`,
  ];
}
