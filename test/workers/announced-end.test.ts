import assert from 'node:assert/strict';
import { EventEmitter } from 'node:events';
import { existsSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { untilNoFile, watchForEnd, type EndSigns } from '../../workers/roles/announced-end.ts';
import { codeOf, type OpenedWorker } from '../../workers/roles/run-worker.ts';
import { eventually, temporaryFolder } from './fixtures/processes.ts';

function watched(t: TestContext, signs: EndSigns) {
  const seen = { ends: [] as string[], said: [] as string[] };
  const say = (line: string): void => void seen.said.push(line);
  const stop = watchForEnd(signs, (why) => void seen.ends.push(why), { say, lookMs: 5, askMs: 5 });
  t.after(stop);
  return seen;
}

test('a file announces the end, once', async (t) => {
  const file = path.join(temporaryFolder(t), 'drain');
  const { ends } = watched(t, { file });
  writeFileSync(file, '');
  await eventually('it is seen', () => ends.length > 0);
  assert.deepEqual(ends, [`${file} is there`]);
});

test('a hook announces the end by its exit code 0, and is asked until then', async (t) => {
  const folder = temporaryFolder(t);
  const [asked, notice] = [path.join(folder, 'asked'), path.join(folder, 'notice')];
  const { ends, said } = watched(t, { hook: `echo >> ${asked}; test -e ${notice} && echo 'terminate at 12:00'` });
  await eventually('it is asked', () => existsSync(asked));
  assert.deepEqual(ends, []);
  writeFileSync(notice, '');
  await eventually('it is seen', () => ends.length > 0);
  assert.deepEqual([ends, said], [['--drain-hook: terminate at 12:00'], []]);
});

test('a hook sees no secrets, and one that cannot be run is said once', async (t) => {
  process.env['PLANTED_API_KEY'] = 's3cret';
  t.after(() => delete process.env['PLANTED_API_KEY']);
  const clean = watched(t, { hook: 'test -z "$PLANTED_API_KEY" && test -n "$PATH"' });
  await eventually('it ends', () => clean.ends.length > 0);
  const missing = watched(t, { hook: 'no-such-program-here' });
  await eventually('it is said', () => missing.said.length > 0);
  await new Promise((resolve) => setTimeout(resolve, 100));
  assert.equal(missing.said.length, 1);
  assert.match(missing.said[0]!, /--drain-hook: it cannot be run: .*no-such-program-here/);
  assert.deepEqual(missing.ends, []);
});

test('a worker that is told so shuts down once, and its process ends as after SIGTERM', async (t) => {
  const file = path.join(temporaryFolder(t), 'drain');
  const said: string[] = [];
  let shutdowns = 0;
  let isOver: () => void = () => undefined;
  const worker: OpenedWorker = {
    run: () => new Promise((resolve) => (isOver = resolve)),
    shutdown: () => {
      shutdowns += 1;
      isOver();
    },
    isWorking: () => true,
  };
  writeFileSync(file, '');
  const told = new EventEmitter() as NodeJS.Process;
  assert.equal(await codeOf(worker, (line) => void said.push(line), { told, signs: { file } }), 0);
  assert.deepEqual([shutdowns, said], [1, [`${file} is there: this worker finishes its work and ends`]]);
});

test('a worker begins when the file is gone', async (t) => {
  const file = path.join(temporaryFolder(t), 'drain');
  const said: string[] = [];
  const say = (line: string): void => void said.push(line);
  await untilNoFile(undefined, { say });
  await untilNoFile(file, { say });
  assert.deepEqual(said, []);
  writeFileSync(file, '');
  let hasBegun = false;
  const begun = untilNoFile(file, { say, lookMs: 5 }).then(() => (hasBegun = true));
  await eventually('it waits', () => said.length === 1);
  assert.equal(hasBegun, false);
  rmSync(file);
  await begun;
  assert.deepEqual(said, [`no worker begins while ${file} is there`]);
});
