/** Rescores and schedules of evaluations, as people type them: who did that is in the changes of what it concerns. */
import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { rm, writeFile } from 'node:fs/promises';
import { hostname, userInfo } from 'node:os';
import path from 'node:path';
import { after, describe, test, type TestContext } from 'node:test';
import { ScheduleClient } from '@temporalio/client';
import {
  createRecordCancel,
  createRecordScheduleChange,
  recordingRescore,
  type ScheduleChange,
} from '../../activities/record-change.ts';
import { closeRescore } from '../../activities/rescore/close-rescore.ts';
import { createOpenRescore } from '../../activities/rescore/open-rescore.ts';
import { createRescoreChunk } from '../../activities/rescore/rescore-chunk.ts';
import type { RescoreInput } from '../../core/eval/rescore.ts';
import { type Changed, changeLine } from '../../core/rl/changes.ts';
import { readChanges } from '../../runs/changes.ts';
import { encodeStored } from '../../runs/forms/stored-forms.ts';
import { layout } from '../../runs/layout.ts';
import { historyOfChanges } from '../../workers/temporal/history-of-changes.ts';
import { dataConverterFor, readPayloadKeys } from '../../workers/temporal/payload-codec.ts';
import { scheduleSweeps } from '../../workers/temporal/sweep-schedule.ts';
import { advance, commitFirst, makeRun, openRoles, type TestRun } from '../activities/runs.ts';
import { openCommands } from '../cli/typed.ts';
import { rescoreOf } from './fake-evaluation.ts';
import { FakeRun, type Fakes, Gate, specWith } from './fake-run.ts';
import { failureOf, until } from './look.ts';
import { answersFor, begin, closeServer, freshName, openServer } from './server.ts';

after(closeServer);
const typed = openCommands();

const me = `${userInfo().username}@${hostname()}`;
const key = 'a key of ann';

/** What a person sees: `ratchet events NAME --changes`, without times and steps. */
type Look = (...words: readonly string[]) => Promise<string[]>;

interface Project {
  readonly here: string;
  readonly run: TestRun;
  readonly name: string;
  /** Types a command; throws unless it ends with this code. */
  readonly say: (line: string, options?: { readonly code?: number; readonly key?: string }) => Promise<string>;
  readonly look: Look;
  readonly keepRoles: (mine: string) => Promise<void>;
}

/** A project with a run of one step, whose changes the shipped activities record. */
async function projectOf(t: TestContext): Promise<Project> {
  const name = freshName();
  const run = await makeRun(t, {}, name);
  await run.store.put(layout.run(), encodeStored(layout.run(), { spec: run.spec, begunAt: '2026-11-01T00:00' }));
  const roles = openRoles();
  await advance(run, roles, await commitFirst(run, roles));
  const here = path.dirname(run.folder);
  await writeFile(
    path.join(here, 'nightly.toml'),
    'model = "m"\napi_base_url = "http://127.0.0.1:9/v1"\n[[eval]]\nid = "reverse-text"\n',
  );
  const { client, environment } = await openServer();
  const history = historyOfChanges(() => client);
  const fakes: Fakes = {
    recordScheduleChange: createRecordScheduleChange(history),
    recordCancel: createRecordCancel(history),
    openRescore: recordingRescore(createOpenRescore({ codeVersion: 'test' }), history),
    rescoreChunk: createRescoreChunk({}),
    closeRescore,
  };
  for (const first of [name, 'rescore']) await answersFor(new FakeRun(specWith(first, {})), fakes);
  const env = { TEMPORAL_ADDRESS: environment.address };
  const say: Project['say'] = async (line, { code = 0, key: ofKey } = {}) => {
    const said = await typed(here, line.split(' '), { ...env, ...(ofKey && { RATCHET_KEY: ofKey }) });
    assert.equal(said.code, code, `${line}: ${said.out}${said.err}`);
    return said.out + said.err;
  };
  return {
    here,
    run,
    name,
    say,
    look: async (...words) =>
      (await say(['events', ...words, '--changes', '--store', 'file:.'].join(' ')))
        .trimEnd()
        .split('\n')
        .map((line) => line.replace(/^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d +/, '')),
    keepRoles: (mine) =>
      writeFile(
        path.join(here, 'roles.toml'),
        `[users.me]\nrole = "${mine}"\nlogins = ["${me}"]\n[users.ann]\nrole = "operator"\nkey_sha256 = "${createHash('sha256').update(key).digest('hex')}"\n`,
      ),
  };
}

const kept = async (of: Changed): Promise<string[]> => (await readChanges(of)).changes.map(changeLine);

describe('who typed it is in the record', () => {
  test('of a schedule that evaluates a run: its making, changes and removal, in the changes of the run', async (t) => {
    const { name, run, say, look, keepRoles } = await projectOf(t);
    const of: Changed = { ...run.run, kind: 'run' };
    const schedule = `${name}.nightly`;
    const recorded = (count: number) => until(`${count} changes`, async () => (await kept(of)).length === count);
    await say(
      `eval schedule nightly.toml --run ${name} --every 6h --on-regression pause --name ${schedule} --store file:.`,
    );
    await recorded(1);
    await say(`eval schedule pause ${schedule}`);
    await recorded(2);
    await keepRoles('viewer');
    for (const what of ['resume', 'trigger', 'delete'])
      assert.match(
        await say(`eval schedule ${what} ${schedule}`, { code: 1 }),
        new RegExp(`^me is a viewer \\(roles\\.toml\\): eval schedule ${what} asks for the role operator`),
      );
    await say(`eval schedule resume ${schedule}`, { key });
    await recorded(3);
    await say(`eval schedule delete ${schedule}`, { key });
    await recorded(4);
    const asked = [
      `${me} asked: schedule ${schedule} the newest checkpoint of ${name} on nightly.toml, every 6h, on regression pause`,
      `${me} asked: schedule-pause ${schedule}`,
      `ann asked: schedule-resume ${schedule}`,
      `ann asked: schedule-delete ${schedule}`,
    ];
    assert.deepEqual(await look(name), asked);
    assert.deepEqual(await look(schedule, '--of', 'schedule'), asked);
    await say(`eval schedule delete ${schedule}`, { code: 1, key });
    assert.equal((await kept(of)).length, 4, 'what did not happen is in no record');
  });

  test('of a schedule of other models: under its own name', async (t) => {
    const { name, run, say, look, keepRoles } = await projectOf(t);
    await keepRoles('operator');
    const schedule = `${name}.models`;
    const of: Changed = { kind: 'schedule', name: schedule, store: run.run.store };
    assert.match((await look(schedule, '--of', 'schedule')).join(), /^no change of a schedule .* is in file:\./);
    await say(`eval schedule nightly.toml --every 1h --name ${schedule} --store file:.`);
    await until('its making', async () => (await kept(of)).length === 1);
    await say(`eval schedule delete ${schedule}`);
    await until('its end', async () => (await kept(of)).length === 2);
    assert.deepEqual(await look(schedule, '--of', 'schedule'), [
      `${me} asked: schedule ${schedule} the models of nightly.toml, every 1h`,
      `${me} asked: schedule-delete ${schedule}`,
    ]);
    assert.deepEqual(await kept({ ...run.run, kind: 'run' }), []);
  });

  test('of a rescore of a run, once, though the same command shows it again; a viewer rescores nothing', async (t) => {
    const { name, run, say, look, keepRoles } = await projectOf(t);
    await keepRoles('viewer');
    assert.match(await say(`rescore ${name} --store file:.`, { code: 1 }), /rescore asks for the role operator/);
    assert.deepEqual(await kept({ ...run.run, kind: 'run' }), []);
    await say(`rescore ${name} --store file:.`, { key });
    await rm(path.join(run.folder, '..', 'roles.toml'));
    await say(`rescore ${name} --store file:.`);
    const [line, ...more] = await look(name);
    assert.match(line ?? '', /^ann asked: rescore [\da-f]{8} steps 1-1, by its own rubrics$/);
    assert.deepEqual(more, []);
    await say(`rescore ${name} --store file:. --fresh`);
    assert.match((await look(name))[1] ?? '', new RegExp(`^${me} asked: rescore [\\da-f]{8} steps 1-1`));
  });

  test('of a rescore of an evaluation, and who cancelled it', async (t) => {
    const { run } = await makeRun(t);
    const place = { store: run.store, name: 'judged', prefix: '' };
    const input: RescoreInput = rescoreOf('judged', {
      subject: { kind: 'evaluation', place },
      results: { ...place, prefix: 'rescores/0a1b2c3d/' },
    });
    const gate = new Gate();
    const { client } = await openServer();
    const history = historyOfChanges(() => client);
    const began = await begin({
      type: 'rescore',
      args: [input],
      fakes: {
        openRescore: (asked, { usual }) => recordingRescore(() => usual(), history)(asked),
        recordCancel: createRecordCancel(history),
        rescoreChunk: async (_, { usual }) => {
          await gate.pass();
          return usual();
        },
      },
    });
    await gate.reached;
    await began.handle.cancel();
    assert.match(await failureOf(began.handle.result()), /^CancelledFailure/);
    gate.open();
    const asked = '0a1b2c3d by strict';
    const who = `${process.pid}@${hostname()}`;
    assert.deepEqual(await kept({ kind: 'evaluation', place }), [
      `${who} asked: rescore ${asked}`,
      `${who} asked: rescore-cancel ${asked}`,
    ]);
  });

  test('a run that was removed does not come back with the record of its schedule', async (t) => {
    const { name, run } = await projectOf(t);
    await rm(run.folder, { recursive: true });
    const { client } = await openServer();
    const { store } = run.run;
    const schedule = `${name}.gone`;
    const change: ScheduleChange = { schedule, store, run: name, what: 'schedule-delete', asked: schedule };
    const handle = await client.workflow.start('recordScheduleChange', {
      workflowId: `${schedule}.1`,
      taskQueue: 'ratchet',
      args: [change],
    });
    await handle.result();
    assert.equal((await kept({ kind: 'schedule', name: schedule, store })).length, 1);
    assert.deepEqual(await run.store.list(''), []);
  });

  test('a schedule of another key is paused and taken down, in no record', async (t) => {
    const { name, run, say } = await projectOf(t);
    const { connection, options } = (await openServer()).client;
    const keys = readPayloadKeys({ RATCHET_PAYLOAD_KEY: randomBytes(32).toString('base64') });
    const { namespace } = options;
    const other = new ScheduleClient({ connection, namespace, dataConverter: dataConverterFor(keys) });
    const schedule = `${name}.theirs`;
    await other.create({
      scheduleId: schedule,
      spec: { intervals: [{ every: '1d' }] },
      action: { type: 'startWorkflow', workflowType: 'evaluateNewest', taskQueue: 'nobody', args: [{}] },
      memo: { a: 'word' },
    });
    for (const what of ['pause', 'delete'])
      assert.match(await say(`eval schedule ${what} ${schedule}`), /theirs cannot be read, .* in no record/);
    assert.match(await say(`eval schedule delete ${schedule}`, { code: 1 }), /^There is no schedule/);
    assert.deepEqual(await kept({ kind: 'schedule', name: schedule, store: run.run.store }), []);
  });

  test('of the sweep of sandboxes that somebody schedules: who made it, where it did not stand before', async (t) => {
    const { run, say } = await projectOf(t);
    const { client } = await openServer();
    const { id } = await scheduleSweeps(client, run.run.store);
    await client.schedule.getHandle(id).delete();
    await answersFor(new FakeRun(specWith('sandboxes', {})), {
      recordScheduleChange: createRecordScheduleChange(historyOfChanges(() => client)),
    });
    const of: Changed = { kind: 'schedule', name: id, store: run.run.store };
    try {
      await say('sandboxes sweep --schedule --store file:.');
      await until('its making', async () => (await kept(of)).length === 1);
      await say('sandboxes sweep --schedule --store file:.');
      assert.deepEqual(await kept(of), [`${me} asked: schedule ${id} ends sandboxes that nobody owns, every minute`]);
      await say(`eval schedule pause ${id}`);
      await until('its pause', async () => (await kept(of)).length === 2);
    } finally {
      await client.schedule.getHandle(id).delete();
    }
  });
});
