import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { attachOrStart } from '../../cli/start/start-run.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import type { TrainRunInput } from '../../activities/index.ts';
import { handedOver, readBeginning } from '../../workers/stack/take-over.ts';
import { eventually } from '../eventually.ts';
import { FakeRun, Gate, specWith } from '../workflows/fake-run.ts';
import { begin, type Begun, type BegunRun, closeServer, freshName, shortHistoryQueue } from '../workflows/server.ts';

const text = `model = "preset:reverse-text-0.2m"
max_steps = 3
batch_size = 8
rollouts_per_example = 4
max_async_level = 0
learning_rate = 1e-3
[[env]]
id = "reverse-text"
args = { min_length = 3 }
[checkpoints]
interval = 2
keep_last = 2
`;

let folder: string;

before(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-changed-'));
});
after(async () => {
  await closeServer();
  await rm(folder, { recursive: true, force: true });
});

interface Typed {
  readonly overrides?: Readonly<Record<string, string>>;
  readonly isAlone?: boolean;
}

interface Open {
  readonly run: BegunRun;
  readonly file: string;
  /** Runs `train` again with this text in its file. */
  again(text: string, typed?: Typed): Promise<{ readonly isAttached: boolean; readonly lines: readonly string[] }>;
  end(): Promise<void>;
}

/** Opens a run whose first rollouts wait until the run is ended. */
async function open(
  of: Begun & { readonly text?: string; readonly stored?: (spec: RunSpec) => RunSpec; readonly byHand?: boolean } = {},
): Promise<Open> {
  const name = freshName();
  const file = path.join(folder, `${name}.toml`);
  await writeFile(file, of.text ?? text);
  const { spec, sent } = await loadRunConfig(file, { projectFolder: folder, run: name });
  const gate = new Gate();
  const run = await begin({
    fakes: {
      playGroups: async (_, call) => {
        await gate.pass();
        return call.usual();
      },
    },
    ...of,
    fake: new FakeRun(specWith(name, of.stored?.(spec) ?? spec)),
    args: of.byHand ? [file] : [{ config: file, overrides: {}, run: name, sent }],
  });
  return {
    run,
    file,
    async again(now, { overrides = {}, isAlone = false } = {}) {
      await writeFile(file, now);
      const loaded = await loadRunConfig(file, { projectFolder: folder, run: name, overrides });
      const lines: string[] = [];
      const { isAttached } = await attachOrStart(
        run.client,
        { config: file, overrides, run: name, sent: loaded.sent },
        { ...loaded, projectFolder: folder, again: `npx ratchet-rl train ${file}`, isAlone },
        { say: (line) => void lines.push(line) },
      );
      return { isAttached, lines };
    },
    async end() {
      gate.open();
      await run.client.workflow.getHandle(name).terminate('the test is over');
    },
  };
}

async function isOpened({ run }: Open): Promise<void> {
  await run.atStep(0);
}

async function refusal(of: Promise<unknown>): Promise<string> {
  const error = await of.then(
    () => assert.fail('expected a refusal'),
    (failed: unknown) => failed as Error & { code?: string },
  );
  assert.equal(error.code, 'ConfigInvalid', error.stack);
  return error.message;
}

describe('a run file that is trained while its run is open', () => {
  test('and has the same settings in other words is attached to', async () => {
    const run = await open();
    await isOpened(run);
    const sorted = text.split('\n').slice(0, 6).toReversed().join('\n');
    const reordered = `# later\n${sorted}\n\n${text.split('\n').slice(6).join('\n')}`.replace('1e-3', '0.001');
    assert.deepEqual(await run.again(reordered), { isAttached: true, lines: [] });
    const asTyped = text.replace('max_steps = 3\n', '');
    assert.deepEqual(await run.again(asTyped, { overrides: { 'max-steps': '3' } }), { isAttached: true, lines: [] });
    await refusal(run.again(text.replace('1e-3', '2e-3')));
    assert.deepEqual(await run.again(text), { isAttached: true, lines: [] }, 'changed back');
    await run.end();
  });

  test('and has another learning rate is refused with what to type', async () => {
    const run = await open();
    await isOpened(run);
    const { name } = run.run;
    const message = await refusal(run.again(text.replace('1e-3', '2e-3').replace('keep_last = 2', 'keep_last = 5')));
    assert.match(message, new RegExp(`^The run ${name} is open with other settings than ${run.file}`));
    assert.match(message, /^ {2}learning_rate: 0\.001 in the run → 0\.002 now$/m);
    assert.match(message, /^ {2}\[checkpoints\] keep_last: 2 in the run → 5 now$/m);
    assert.match(message, new RegExp(`^ {2}npx ratchet-rl attach ${name}$`, 'm'));
    assert.match(message, new RegExp(`^ {2}npx ratchet-rl set ${name} learning_rate=0\\.002$`, 'm'));
    assert.match(
      message,
      new RegExp(`^ {2}npx ratchet-rl stop ${name}, and when it has ended npx ratchet-rl train `, 'm'),
    );
    assert.match(message, /^ {2}npx ratchet-rl train \S+ --fresh$/m);
    const { status } = await run.run.handle.describe();
    assert.equal(status.name, 'RUNNING', 'nothing was changed');
    await run.end();
  });

  test('and has another model, batch and environment is refused as another run', async () => {
    const run = await open();
    await isOpened(run);
    const other = text
      .replace('reverse-text-0.2m', 'reverse-text-1.5m')
      .replace('batch_size = 8', 'batch_size = 16')
      .replace('min_length = 3', 'min_length = 4');
    const message = await refusal(run.again(other));
    const stays = 'stays for the life of a run';
    assert.match(message, new RegExp(`^ {2}model: "preset:.*" in the run → "preset:.*" now {3}${stays}$`, 'm'));
    assert.match(message, new RegExp(`^ {2}batch_size: 8 in the run → 16 now {3}${stays}$`, 'm'));
    assert.match(
      message,
      new RegExp(`^ {2}\\[\\[env\\]\\] reverse-text args min_length: 3 in the run → 4 now {3}${stays}$`, 'm'),
    );
    assert.doesNotMatch(message, /ratchet(?:-rl)? (?:stop|set)/);
    const elsewhere = await refusal(run.again(`${text}[store]\nuri = "file:${folder}/elsewhere"\n`));
    assert.match(elsewhere, /^ {2}\[store\] uri: .* → .*elsewhere/m);
    assert.doesNotMatch(elsewhere, /ratchet-rl stop/);
    await run.end();
  });

  test('and has its environments in another order is refused as another run; an added one is the only difference named', async () => {
    const second = '[[env]]\nid = "reverse-text"\nname = "longer"\nargs = { min_length = 5 }\n';
    const first = '[[env]]\nid = "reverse-text"\nargs = { min_length = 3 }\n';
    const run = await open({ text: text.replace(first, first + second) });
    await isOpened(run);
    const message = await refusal(run.again(text.replace(first, second + first)));
    assert.match(message, /^ {2}\[\[env\]\] in this order: \["[^\]]*"longer"\] in the run → \["longer"/m);
    const gone = await refusal(run.again(text));
    assert.match(gone, /^ {2}\[\[env\]\] longer: \{.*\} in the run → nothing now/m);
    assert.doesNotMatch(gone, /in this order/);
    await run.end();
  });

  test('and has the value that was set in between is attached to; another value is set, not trained', async () => {
    const run = await open();
    await isOpened(run);
    await run.run.tell('set', { learning_rate: 0.005 });
    assert.deepEqual(await run.again(text.replace('1e-3', '5e-3')), { isAttached: true, lines: [] });
    assert.deepEqual(await run.again(text), { isAttached: true, lines: [] }, 'the file is as it was');
    const message = await refusal(run.again(text.replace('1e-3', '2e-3')));
    assert.match(message, /^ {2}learning_rate: 0\.005 in the run → 0\.002 now {3}set while it ran/m);
    assert.match(message, /ratchet-rl set \S+ learning_rate=0\.002$/m);
    assert.doesNotMatch(message, /ratchet-rl stop/);
    await run.end();
  });

  test('and changes only settings of its processes is attached to, with a note', async () => {
    const run = await open();
    await isOpened(run);
    const { isAttached, lines } = await run.again(`${text}[trainer]\nthreads = 2\n`);
    assert.equal(isAttached, true);
    assert.deepEqual(lines, [
      `the processes of ${run.run.name} go on as they were started: [trainer] threads 1 (now 2)`,
    ]);
    await run.end();
  });

  test('whose environment code was changed is refused with the content’s digest', async () => {
    const module = path.join(folder, 'own.ts');
    const code = 'export const loadEnvironment = () => ({});\n';
    await writeFile(module, code);
    const own = text.replace('id = "reverse-text"\nargs = { min_length = 3 }', 'id = "./own.ts"');
    const run = await open({ text: own });
    await isOpened(run);
    assert.deepEqual(await run.again(own), { isAttached: true, lines: [] });
    await writeFile(module, `${code}// better\n`);
    const message = await refusal(run.again(own));
    assert.match(message, /^ {2}\[\[env\]\] own sha256: [0-9a-f]{12}… in the run → [0-9a-f]{12}… now$/m);
    assert.match(message, /ratchet-rl stop/);
    await run.end();
  });

  test('and was read by an older version, which knew fewer settings, is attached to', async () => {
    const run = await open({
      // A default that a later version adds, because the file does not set it.
      stored: (spec) => ({ ...spec, maxMismatchKl: 123 }),
    });
    await isOpened(run);
    assert.deepEqual(await run.again(`# said again\n${text}`), { isAttached: true, lines: [] });
    assert.match(await refusal(run.again(text.replace('1e-3', '2e-3'))), /learning_rate: 0\.001 in the run → 0\.002/);
    await run.end();
  });

  test('and whose run was started by hand is compared with the stored settings', async () => {
    const run = await open({ byHand: true });
    await isOpened(run);
    assert.deepEqual(await run.again(`# said again\n${text}`), { isAttached: true, lines: [] });
    assert.match(await refusal(run.again(text.replace('1e-3', '2e-3'))), /learning_rate: 0\.001 in the run → 0\.002/);
    await run.end();
  });

  test('while the run is still being opened is compared with the file that was sent', async () => {
    const gate = new Gate();
    const run = await open({
      fakes: {
        openRun: async (_, call) => {
          await gate.pass();
          return call.usual();
        },
      },
    });
    await gate.reached;
    assert.deepEqual(await run.again(`# said again\n${text}`), { isAttached: true, lines: [] });
    assert.match(await refusal(run.again(text.replace('1e-3', '2e-3'))), /learning_rate: 0\.001 in the run → 0\.002/);
    gate.open();
    await run.end();
  });

  test('after the run continued as another execution is compared too', async () => {
    const gate = new Gate();
    const run = await open({
      taskQueue: shortHistoryQueue,
      text: text.replace('max_steps = 3', 'max_steps = 12'),
      fakes: {
        trainBatch: async (input, call) => {
          if (call.nth > 8) await gate.pass();
          return call.usual(input);
        },
      },
    });
    const { name, client, handle } = run.run;
    await gate.reached;
    await eventually('another execution', async () => (await client.workflow.getHandle(name).describe()).runId, (id) => id !== handle.firstExecutionRunId); // prettier-ignore
    const long = text.replace('max_steps = 3', 'max_steps = 12');
    assert.deepEqual(await run.again(`# said again\n${long}`), { isAttached: true, lines: [] });
    assert.match(await refusal(run.again(long.replace('1e-3', '2e-3'))), /learning_rate: 0\.001 in the run → 0\.002/);
    gate.open();
    await run.end();
  });
});

describe('a run that was interrupted, when its changed file is trained,', () => {
  test('continues with allowed changes, and lists them', async () => {
    const run = await open();
    await isOpened(run);
    const { name, client, handle } = run.run;
    assert.deepEqual(await run.again(text, { isAlone: true }), { isAttached: true, lines: [] });
    const { lines } = await run.again(text.replace('1e-3', '2e-3'), { isAlone: true });
    assert.deepEqual(lines, [
      `the run ${name} was interrupted and continues from its newest commit with what was changed since:`,
      '  learning_rate: 0.001 in the run → 0.002 now',
    ]);
    const { status, runId } = await client.workflow.getHandle(name).describe();
    assert.equal(status.name, 'RUNNING');
    assert.notEqual(runId, handle.firstExecutionRunId);
    await run.end();
  });

  test('keeps a pause and what was set, also when it is started anew once more', async () => {
    const run = await open();
    await isOpened(run);
    await run.run.tell('set', { learning_rate: 0.005 });
    await run.run.tell('pause', 'lunch');
    const { client, name } = run.run;
    const description = () => client.workflow.getHandle(name).describe();
    const asked = { pausedBecause: 'lunch', isPausedByPerson: true, overrides: { learningRate: 0.005 }, rewind: null };
    for (const steps of [4, 5]) {
      const { runId: before } = await description();
      const { lines } = await run.again(text.replace('max_steps = 3', `max_steps = ${steps}`), { isAlone: true });
      assert.match(lines[0]!, /was interrupted and continues from its newest commit/);
      const { memo, runId } = await description();
      assert.deepEqual(memo?.['asked'], asked);
      const { input } = await readBeginning<Exclude<TrainRunInput, string>>(client, name, runId);
      assert.deepEqual(input.takesOver, { handle: null, asked, request: `${name}/${before}/again` });
    }
    await run.end();
  });

  test('goes on where no person had paused it: whoever trains it again has looked', async () => {
    const run = await open();
    await isOpened(run);
    const { client, name } = run.run;
    const memo = {
      pausedBecause: 'too many failed',
      isPausedByPerson: false,
      overrides: { stopAfter: 2 },
      rewind: null,
    };
    await client.workflow.start('trainRun', {
      workflowId: name,
      taskQueue: 'nobody-is-there',
      args: [{ config: run.file, run: name }],
      memo: { asked: memo },
      workflowIdConflictPolicy: 'TERMINATE_EXISTING',
    });
    const { asked } = await handedOver(client, name);
    assert.deepEqual(asked, { ...memo, pausedBecause: null });
    await run.end();
  });

  test('is restarted for a setting of the process that trains, which reads it from the run', async () => {
    const run = await open();
    await isOpened(run);
    const { lines } = await run.again(`${text}[trainer]\nthreads = 2\n`, { isAlone: true });
    assert.deepEqual(lines, [
      `the run ${run.run.name} was interrupted and continues from its newest commit with what was changed since:`,
      '  [trainer] threads: 1 in the run → 2 now',
    ]);
    await run.end();
  });

  test('is refused where it would be another run', async () => {
    const run = await open();
    await isOpened(run);
    const message = await refusal(run.again(text.replace('batch_size = 8', 'batch_size = 16'), { isAlone: true }));
    assert.match(message, /was interrupted and continues with other settings than/);
    assert.match(message, /batch_size: 8 in the run → 16 now {3}stays for the life of a run/);
    assert.match(message, /--fresh$/m);
    assert.doesNotMatch(message, /ratchet(?:-rl)? (?:attach|stop|set)/);
    await run.end();
  });
});
