import { writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import proto from '@temporalio/proto';
import { openSmallProject, smallRun } from '../e2e/small-run.ts';

/**
 * Records the histories that `replay.test.ts` replays: `npm run record:history`. Recorded once for each shipped shape of
 * the workflow; a history stays here as long as runs of its kind may still be going on somewhere.
 */
const shapes = {
  'on-policy': smallRun,
  'async-1': smallRun.replace('max_async_level = 0', 'max_async_level = 1').replace('max_steps = 12', 'max_steps = 6'),
};
const project = await openSmallProject(
  Object.fromEntries(Object.entries(shapes).map(([name, text]) => [`${name}.toml`, text])),
);
try {
  for (const name of Object.keys(shapes)) {
    const args = { workflowId: name, taskQueue: 'ratchet', args: [`${name}.toml`] };
    const handle = await project.client.workflow.start('trainRun', args);
    await handle.result();
    const history = await handle.fetchHistory();
    const bytes = proto.temporal.api.history.v1.History.encode(history).finish();
    await writeFile(fileURLToPath(new URL(`./${name}.history.bin`, import.meta.url)), bytes);
    process.stdout.write(`${name}: ${history.events?.length ?? 0} events, ${bytes.byteLength} bytes\n`);
  }
} finally {
  await project.close();
}
