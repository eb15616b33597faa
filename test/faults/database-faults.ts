/** The row in which Temporal's memory is lost. */
import { existsSync, readdirSync, rmSync } from 'node:fs';
import path from 'node:path';
import assert from 'node:assert/strict';
import type { Rows, Struck } from './row.ts';
import type { StagedRun } from './stage.ts';

export const databaseFaults = {
  'database deleted': { stage: 'fake', action: 'hold', strike: deleteDatabase },
} satisfies Rows;

export async function deleteDatabase({ stage, run }: Struck): Promise<StagedRun> {
  const folder = path.join(stage.folder, '.ratchet');
  await stage.restart(() => {
    const files = readdirSync(folder).filter((name) => name.startsWith('temporal.db'));
    assert.ok(files.includes('temporal.db'));
    for (const name of files) rmSync(path.join(folder, name));
    assert.ok(!existsSync(path.join(folder, 'temporal.db')));
    return Promise.resolve();
  });
  return stage.startAgain(run);
}
