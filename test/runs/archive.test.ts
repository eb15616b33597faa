/** A run as one archive: what is exported comes back the same, in any store, and nothing else comes with it. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, describe, test, type TestContext } from 'node:test';
import { auditStore } from '../../activities/audit-run.ts';
import { type TarEntry, writeTar } from '../../host/archives/write-tar.ts';
import { writeAtOnce } from '../../host/write-at-once.ts';
import { type ArchivedRun, archiveOfRun } from '../../runs/archive/export-run.ts';
import { importRun } from '../../runs/archive/import-run.ts';
import { readArchive } from '../../runs/archive/read-archive.ts';
import { refuseUnfinished } from '../../runs/archive/unfinished-import.ts';
import { encodeStored } from '../../runs/forms/stored-forms.ts';
import { layout } from '../../runs/layout.ts';
import { examineStore } from '../../runs/lineages/examine-store.ts';
import { type RunPlace, storeOf } from '../../runs/run-access.ts';
import { listCheckpoints } from '../../runs/versions/list-checkpoints.ts';
import { resolveStoreUri, type Store } from '../../store/index.ts';
import { advance, commitFirst, type Committed, openRoles, runIn, type TestRun } from '../activities/runs.ts';
import { attackTars } from '../backends/sandboxes/attack-tars.ts';
import { type Gateway, skipWithoutGateway, startGateway } from '../store/s3-gateway.ts';

async function folderOf(t: TestContext): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-archive-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  return folder;
}

/** A run of four steps; checkpoints 0, 2 and 4 are sealed. */
async function fourSteps(folder: string): Promise<{ readonly made: TestRun; readonly last: Committed }> {
  const made = await runIn(folder, {}, 'words');
  await made.store.put(layout.run(), encodeStored(layout.run(), { name: 'words', spec: made.spec, begunAt: '2026-11-30T22:00' })); // prettier-ignore
  const roles = openRoles();
  let last = await commitFirst(made, roles);
  while (last.state.step < 4) last = await advance(made, roles, last);
  return { made, last };
}

async function exported(run: RunPlace, file: string): Promise<ArchivedRun> {
  const told: ArchivedRun[] = [];
  await writeAtOnce(file, async (handle) => {
    for await (const piece of archiveOfRun(run, (archived) => told.push(archived))) await handle.writeFile(piece);
  });
  return told[0]!;
}

async function contents(store: Store): Promise<Map<string, string>> {
  const found = new Map<string, string>();
  for (const key of await store.list('')) found.set(key, sha256((await store.read(key))!));
  return found;
}

function sha256(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}

function file(name: string, text: string): TarEntry {
  const bytes = Buffer.from(text);
  return { is: 'file', name, mode: 0o644, modifiedS: 0, size: bytes.length, content: [bytes] };
}

/** An archive of these objects, as `ratchet export` would write it. */
async function forged(
  target: string,
  objects: Readonly<Record<string, string>>,
  more: { readonly sums?: (text: string) => string; readonly after?: readonly TarEntry[]; readonly head?: object } = {},
): Promise<string> {
  const head = `${JSON.stringify(more.head ?? { format: 'ratchet-run', version: 1, run: 'words' })}\n`;
  const all = { 'archive.json': head, ...objects };
  const sums = Object.entries(all).map(([name, text]) => `${sha256(Buffer.from(text))}  ${name}\n`).join(''); // prettier-ignore
  const entries = [
    ...Object.entries(all).map(([name, text]) => file(name, text)),
    file('SHA256SUMS', (more.sums ?? ((text) => text))(sums)),
    ...(more.after ?? []),
  ];
  const pieces: Uint8Array[] = [];
  for await (const piece of writeTar(entries)) pieces.push(piece);
  await writeFile(target, Buffer.concat(pieces));
  return target;
}

test('a run that was exported and imported goes on as the one that stayed, under another name and in another place', async (t) => {
  const folder = await folderOf(t);
  const { made, last } = await fourSteps(folder);
  await made.store.put('notes-of-mine.txt', Buffer.from('mine'));
  await made.store.put(layout.claim(1), encodeStored(layout.claim(1), { workflowId: 'words' }));
  const archive = path.join(folder, 'words.tar');
  const archived = await exported(made.run, archive);
  assert.deepEqual(archived.unknown, ['notes-of-mine.txt']);
  assert.deepEqual(archived.unsealed, []);

  const elsewhere = resolveStoreUri(path.join(folder, 'elsewhere'), folder);
  const { run, objects } = await importRun(archive, { store: elsewhere, name: 'copy' });
  assert.equal(objects, archived.objects);
  const [theirs, ours] = [await contents(storeOf(run)), await contents(made.store)];
  ours.delete('notes-of-mine.txt');
  ours.delete(layout.claim(1)); // a workflow here drives it, and no other run
  assert.deepEqual(theirs, ours);
  const copied = { ...made.run, ...run };
  assert.deepEqual(await auditStore(copied), { ...(await auditStore(made.run)), run: 'copy' });
  assert.deepEqual((await examineStore(copied)).faults, []);
  assert.deepEqual(await listCheckpoints(copied), await listCheckpoints(made.run));

  const stayed = await advance(made, openRoles(), last);
  const moved = await advance(
    { ...made, run: copied, store: storeOf(run), folder: path.join(folder, 'elsewhere/copy') },
    openRoles(),
    last,
  );
  assert.equal(moved.state.policy.digest, stayed.state.policy.digest);
  assert.notEqual(moved.state.policy.digest, last.state.policy.digest);

  await assert.rejects(importRun(archive, { store: elsewhere, name: 'copy' }), /no run of this name.*--name NAME/s);
  for (const name of ['evals', 'sweeps'])
    await assert.rejects(importRun(archive, { store: elsewhere, name }), /another name for a run than evals, gepa.*--name NAME/s); // prettier-ignore
  await exported(made.run, path.join(folder, 'again.tar'));
});

test('equal runs give equal archives, and the system’s own tools verify one', async (t) => {
  const folder = await folderOf(t);
  const { made } = await fourSteps(folder);
  const [first, second] = ['a.tar', 'b.tar'].map((name) => path.join(folder, name)) as [string, string];
  await exported(made.run, first);
  await importRun(first, { store: resolveStoreUri(path.join(folder, 'there'), folder), name: undefined });
  await exported({ name: 'words', store: resolveStoreUri(path.join(folder, 'there'), folder) }, second);
  assert.ok((await readFile(first)).equals(await readFile(second)));
  execFileSync('tar', ['xf', first], { cwd: folder });
  execFileSync('sha256sum', ['--check', '--strict', '--quiet', 'SHA256SUMS'], { cwd: folder });
});

test('a checkpoint that lacks a file is not sealed in an archive, and an archive where it is gets refused', async (t) => {
  const folder = await folderOf(t);
  const { made } = await fourSteps(folder);
  const whole = path.join(folder, 'whole.tar');
  await exported(made.run, whole);
  const [optimizer] = (await made.store.list(layout.checkpoint('main', 4))).filter((key) => /optimizer/.test(key));
  await rm(path.join(made.folder, optimizer!));
  const archive = path.join(folder, 'words.tar');
  const { unsealed } = await exported(made.run, archive);
  assert.deepEqual(unsealed.map(({ key }) => key), ['checkpoints/step_4/manifest.json']); // prettier-ignore
  assert.match(unsealed[0]!.lacks, new RegExp(`${optimizer}.*missing`));
  const store = resolveStoreUri(path.join(folder, 'there'), folder);
  const { run } = await importRun(archive, { store, name: undefined });
  const { checkpoints } = await listCheckpoints({ ...made.run, ...run });
  assert.ok(checkpoints.every(({ step, state }) => (step === 4 ? state === 'unsealed' : state === 'sealed')));

  const lacking = await forged(path.join(folder, 'lacking.tar'), {
    'run/run.json': String(Buffer.from((await made.store.read('run.json'))!)),
    'run/checkpoints/step_4/manifest.json': String(
      Buffer.from((await made.store.read('checkpoints/step_4/manifest.json'))!),
    ),
  });
  await assert.rejects(
    importRun(lacking, { store, name: 'other' }),
    /expected the whole checkpoint checkpoints\/step_4/,
  );
  assert.deepEqual(await storeOf({ store, name: 'other' }).list(''), []);
});

test('a checkpoint that retention removes during the export is not in the archive, whose run is sound', async (t) => {
  const folder = await folderOf(t);
  const { made } = await fourSteps(folder);
  const archive = path.join(folder, 'words.tar');
  const told: ArchivedRun[] = [];
  await writeAtOnce(archive, async (handle) => {
    for await (const piece of archiveOfRun(made.run, (archived) => told.push(archived))) {
      // Commits come after nearly everything else.
      if (Buffer.from(piece).includes(layout.commit('main', 4)))
        await rm(path.join(made.folder, layout.checkpoint('main', 2)), { recursive: true, force: true });
      await handle.writeFile(piece);
    }
  });
  assert.deepEqual(told[0]!.unsealed.map(({ key }) => key), ['checkpoints/step_2/manifest.json']); // prettier-ignore
  const { run } = await importRun(archive, {
    store: resolveStoreUri(path.join(folder, 'there'), folder),
    name: undefined,
  });
  const { checkpoints } = await listCheckpoints({ ...made.run, ...run });
  assert.deepEqual(checkpoints.map(({ step, state }) => [step, state]), [[0, 'sealed'], [4, 'sealed']]); // prettier-ignore
  assert.ok((await auditStore({ ...made.run, ...run })).isSound);
});

describe('an archive that is not what it should be writes nothing', () => {
  const objects = { 'run/run.json': '{}', 'run/metrics.jsonl': '' };
  const cases: Readonly<Record<string, [(target: string) => Promise<string>, RegExp]>> = {
    'a changed object': [
      (target) =>
        forged(target, objects, { sums: (text) => text.replace(/[0-9a-f]{64}(?= {2}run\/run)/, 'a'.repeat(64)) }),
      /expected run\/run\.json with sha256 aaaa/,
    ],
    'an object that the list lacks': [
      (target) => forged(target, objects, { sums: (text) => text.replace(/.* run\/metrics\.jsonl\n/, '') }),
      /expected only what SHA256SUMS lists, got "run\/metrics.jsonl"/,
    ],
    'an object that only the list has': [
      (target) => forged(target, objects, { sums: (text) => `${text}${'b'.repeat(64)}  run/served.json\n` }),
      /run\/served\.json, which SHA256SUMS lists/,
    ],
    'an entry behind the list': [
      (target) => forged(target, objects, { after: [file('run/served.json', '{}')] }),
      /nothing after SHA256SUMS/,
    ],
    'an unknown entry': [
      (target) => forged(target, { ...objects, 'run/evil.sh': 'x' }),
      /objects that a run stores, got "run\/evil\.sh"/,
    ],
    'an entry outside of the run': [
      (target) => forged(target, { ...objects, 'other/run.json': '{}' }),
      /got "other\/run\.json"/,
    ],
    'a claim': [(target) => forged(target, { ...objects, 'run/claims/claim_1.json': '{}' }), /claims\/claim_1/],
    'no run.json': [(target) => forged(target, { 'run/metrics.jsonl': '' }), /expected run\.json/],
    'a newer form': [
      (target) => forged(target, objects, { head: { format: 'ratchet-run', version: 2, run: 'words' } }),
      /version 1, got version 2/,
    ],
    'the name of a path': [
      (target) => forged(target, objects, { head: { format: 'ratchet-run', version: 1, run: '../words' } }),
      /an archive of a run in archive\.json/,
    ],
  };
  for (const [what, [make, why]] of Object.entries(cases))
    test(what, async (t) => {
      const folder = await folderOf(t);
      await refusesAll(folder, await make(path.join(folder, 'words.tar')), why);
    });

  test('any byte that is cut or changed', async (t) => {
    const folder = await folderOf(t);
    const archive = path.join(folder, 'words.tar');
    const bytes = await readFile(await forged(archive, objects));
    for (let length = 0; length < bytes.length - 512; length += 211) {
      await writeFile(archive, bytes.subarray(0, length));
      await refusesAll(folder, archive, /expected a whole archive, got one that is cut off\. Nothing was imported/);
    }
    const content = bytes.indexOf('{}');
    bytes[content] = 0x20;
    await writeFile(archive, bytes);
    await refusesAll(folder, archive, /with sha256/);
  });

  test('tars that somebody made to do harm', async (t) => {
    const folder = await folderOf(t);
    const archive = path.join(folder, 'words.tar');
    for (const [what, bytes] of attackTars()) {
      await writeFile(archive, bytes);
      await assert.doesNotReject(refusesAll(folder, archive, /./), what);
    }
    const good = await readFile(await forged(archive, objects));
    const [end, head] = [good.subarray(0, good.indexOf('SHA256SUMS')), good];
    for (const [what, bytes] of attackTars()) {
      await writeFile(archive, Buffer.concat([end, bytes, head]));
      await assert.doesNotReject(refusesAll(folder, archive, /./), what);
    }
  });

  async function refusesAll(folder: string, archive: string, why: RegExp): Promise<void> {
    const place = path.join(folder, 'there');
    await assert.rejects(importRun(archive, { store: resolveStoreUri(place, folder), name: undefined }), why);
    assert.ok(!existsSync(place) || (await readdir(place)).length === 0);
  }
});

test('an import that was interrupted is no run, trains nothing, and is finished by the same command', async (t) => {
  const folder = await folderOf(t);
  const { made } = await fourSteps(folder);
  const archive = path.join(folder, 'words.tar');
  await exported(made.run, archive);
  const store = resolveStoreUri(path.join(folder, 'there'), folder);
  const there = { store, name: 'words' };
  await storeOf(there).put(layout.unfinishedImport(), Buffer.from(`${'0'.repeat(64)}\n`));
  await assert.rejects(importRun(archive, { store, name: undefined }), /part of an archive/);
  const { sha256: digest } = await readArchive(archive);
  await storeOf(there).removeAll('');
  await storeOf(there).put(layout.unfinishedImport(), Buffer.from(`${digest}\n`));
  await storeOf(there).put(layout.metrics(), Buffer.from(''));
  await assert.rejects(refuseUnfinished(there), /ratchet-rl import FILE/);
  await importRun(archive, { store, name: undefined });
  await refuseUnfinished(there);
  assert.deepEqual(await contents(storeOf(there)), await contents(made.store));
});

describe('from a folder to S3 and back', { skip: skipWithoutGateway }, () => {
  let gateway: Gateway | undefined;
  after(() => gateway?.remove());

  test('a run is the same run, with objects larger than a part', async (t) => {
    gateway = await startGateway();
    const folder = await folderOf(t);
    const { made } = await fourSteps(folder);
    const large = Buffer.alloc(17 * 1024 * 1024 + 3, 'large');
    await made.store.put('quarantine/large.bin', large);
    await made.store.append(layout.metrics(), '{"lineage":"main","step":1}\n');
    const archive = path.join(folder, 'words.tar');
    await exported(made.run, archive);
    const bucket = resolveStoreUri(
      `s3://runs/archived/?endpoint=${encodeURIComponent(`http://127.0.0.1:${gateway.port}`)}&path_style=true`,
      folder,
    );
    const { run } = await importRun(archive, { store: bucket, name: undefined });
    assert.deepEqual(await contents(storeOf(run)), await contents(made.store));
    const back = path.join(folder, 'back.tar');
    await exported(run, back);
    assert.ok((await readFile(back)).equals(await readFile(archive)));
    const home = resolveStoreUri(path.join(folder, 'home'), folder);
    const returned = await importRun(back, { store: home, name: undefined });
    assert.deepEqual(await contents(storeOf(returned.run)), await contents(made.store));
  });
});
