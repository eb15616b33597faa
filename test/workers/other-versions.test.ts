/** Workers of another version: which they are, on which machine, and what to do. */
import assert from 'node:assert/strict';
import { cp, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { codeDigest, digestOf } from '../../workers/program/code-version.ts';
import { linesOf, namingTheWorker } from '../../workers/stack/other-versions.ts';
import { workerIdentity, workerIn } from '../../workers/roles/worker-identity.ts';

const [ours, theirs] = ['0123abcd', '4567cdef'];
const is = (code: string) => () => code;
const orchestrator = { role: 'orchestrator', place: '12@head', code: ours } as const;
const rollout = { role: 'rollout', place: '34@gpu-box', code: ours } as const;
const lacking =
  'Activity function playGroups is not registered on this Worker, available activities: ["generateRollouts"]';

describe('the identity of a worker', () => {
  test('names its role, process, host and code', () => {
    const { role, place, code } = workerIn(workerIdentity('rollout', ours))!;
    assert.deepEqual([role, code], ['rollout', ours]);
    assert.match(place, new RegExp(`^${process.pid}@`));
  });

  test('of an older version has no code, and other identities are not parsed', () => {
    const old = { role: 'train', place: '7@box-1', tag: 'a1b2c3', code: null };
    assert.deepEqual(workerIn('train worker 7@box-1 a1b2c3'), old);
    assert.equal(workerIn('7@box-1'), null);
    assert.equal(workerIn('metrics worker 7@box-1 a1b2c3'), null);
  });
});

describe('the digest of the code', () => {
  test('is the same in every folder, and changes with every line of code', async (t) => {
    const root = fileURLToPath(new URL('../../', import.meta.url));
    const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-code-'));
    t.after(() => rm(folder, { recursive: true, force: true }));
    for (const room of 'activities backends config core engine environments host learn load play runs store workers workflows'.split(
      ' ',
    ))
      await cp(path.join(root, room), path.join(folder, room), { recursive: true });
    assert.equal(digestOf(folder), codeDigest());
    const file = path.join(folder, 'activities/play-groups.ts');
    await writeFile(file, `${await readFile(file, 'utf8')}\n`);
    assert.notEqual(digestOf(folder), codeDigest());
  });
});

describe('workers that poll', () => {
  test("of one version need no line, whatever the caller's version", () => {
    assert.deepEqual(linesOf([orchestrator, rollout], is(theirs)), []);
    assert.deepEqual(linesOf([], is(ours)), []);
  });

  test('an older one beside them is named, with its machine and what to do', () => {
    const [line, ...more] = linesOf(
      [orchestrator, rollout, { role: 'rollout', place: '56@old-box', code: null }],
      is(ours),
    );
    assert.equal(
      line,
      'the rollout worker 56@old-box is of another version (an older one, which does not say which) than the others (code 0123abcd): restart it with theirs, if it still runs',
    );
    assert.deepEqual(more, []);
  });

  test("of other versions than the caller's are compared with the orchestrator", () => {
    const lines = linesOf([orchestrator, { role: 'train', place: '78@box', code: theirs }], is('ffffffff'));
    assert.match(lines.join('\n'), /^the GPU worker 78@box is of another version \(code 4567cdef\)[^\n]*$/);
  });

  test('newer ones beside an older orchestrator: the orchestrator must be restarted', () => {
    const lines = linesOf([{ ...orchestrator, code: null }, rollout], is(ours));
    assert.match(
      lines.join('\n'),
      /^the orchestrator 12@head is of another version[^\n]*restart it with theirs[^\n]*$/,
    );
  });

  test('of several versions, with several orchestrators, are all named', () => {
    const lines = linesOf([orchestrator, { ...orchestrator, place: '13@head', code: null }, rollout], is('ffffffff'));
    assert.equal(lines.length, 1);
    for (const place of ['12@head', '13@head', '34@gpu-box']) assert.ok(lines[0]!.includes(place), place);
  });
});

describe('an activity that its worker does not have', () => {
  test('names the worker, its machine, its version and what to do', () => {
    const said = namingTheWorker(lacking, 'rollout worker 34@gpu-box a1b2c3', is(ours));
    assert.match(said, /^the rollout worker 34@gpu-box has no activity playGroups: it is of another version/);
    assert.match(said, /\(an older one, which does not say which\)\. Restart it with this version \(code 0123abcd\)/);
    assert.match(
      namingTheWorker(lacking, 'rollout worker 34@gpu-box a1b2c3 code 4567cdef', is(ours)),
      /\(code 4567cdef\)/,
    );
  });

  test('that an older orchestrator requested from a worker of this version', () => {
    const said = namingTheWorker(lacking, 'rollout worker 34@gpu-box a1b2c3 code 0123abcd', is(ours));
    assert.match(said, /Restart the orchestrator with this version \(code 0123abcd\)$/);
  });

  test('with an unknown identity is quoted; every other failure stays as it is', () => {
    assert.match(namingTheWorker(lacking, '9@box', is(ours)), /^a worker \(9@box\) has no activity playGroups/);
    assert.match(namingTheWorker(lacking, null, is(ours)), /^a worker \(of no name\) has/);
    assert.equal(namingTheWorker('connection reset', '9@box', is(ours)), 'connection reset');
  });
});
