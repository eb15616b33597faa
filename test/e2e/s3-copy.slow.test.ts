/** A run that is moved from S3 to a folder and back, by copying its objects as any tool would, and continues there. */
import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { GetObjectCommand, ListObjectsV2Command, PutObjectCommand, S3Client } from '@aws-sdk/client-s3';
import { grantNamed } from '../../load/grants/grant.ts';
import { openRunStore, resolveStoreUri } from '../../store/index.ts';
import type { RunSummary, trainRun } from '../../workflows/train-run.ts';
import { skipWithoutGateway, startGateway, type Gateway } from '../store/s3-gateway.ts';
import type { SampledLine } from '../faults/fake-inference.ts';
import { fakeRun } from '../faults/fake-run.ts';
import { openSmallProject, type SmallProject } from './small-run.ts';

const bucket = 'runs';
const name = 'moved';

describe('a run that is copied', { skip: skipWithoutGateway }, () => {
  let gateway: Gateway;
  let project: SmallProject;
  let s3: S3Client;
  let inS3: Readonly<Record<string, string>>;

  before(async () => {
    gateway = await startGateway(); // before the stack, which has its credentials from our environment
    project = await openSmallProject({});
    const endpoint = `http://127.0.0.1:${gateway.port}`;
    s3 = new S3Client({ endpoint, region: 'us-east-1', forcePathStyle: true });
    inS3 = { 'store.endpoint': endpoint };
    // Granted as by a command of this user that names the store.
    grantNamed(project.folder, [`store s3://${bucket} ${endpoint}`]);
  });
  after(async () => {
    s3?.destroy();
    await project?.close();
    await gateway?.remove();
  });

  const logOf = (run: string): string => path.join(project.folder, `${run}.sampled`);

  async function train(run: string, steps: number, store: Readonly<Record<string, string>>): Promise<RunSummary> {
    await writeFile(path.join(project.folder, `${run}.toml`), fakeRun({ steps, log: logOf(run) }));
    return project.client.workflow.execute<typeof trainRun>('trainRun', {
      workflowId: run,
      taskQueue: 'ratchet',
      args: [{ config: `${run}.toml`, overrides: store }],
    });
  }

  async function toFolder(prefix: string, folder: string): Promise<void> {
    const { Contents = [], IsTruncated } = await s3.send(new ListObjectsV2Command({ Bucket: bucket, Prefix: prefix }));
    assert.equal(IsTruncated, false);
    for (const { Key } of Contents) {
      const file = path.join(folder, Key!.slice(prefix.length));
      await mkdir(path.dirname(file), { recursive: true });
      const { Body } = await s3.send(new GetObjectCommand({ Bucket: bucket, Key: Key! }));
      await writeFile(file, await Body!.transformToByteArray());
    }
  }

  async function toS3(folder: string, prefix: string): Promise<void> {
    const entries = await readdir(folder, { recursive: true, withFileTypes: true });
    for (const entry of entries.filter((one) => one.isFile())) {
      const file = path.join(entry.parentPath, entry.name);
      const Key = prefix + path.relative(folder, file).split(path.sep).join('/');
      await s3.send(new PutObjectCommand({ Bucket: bucket, Key, Body: await readFile(file) }));
    }
  }

  function stepsMeasured(metrics: string): number[] {
    return metrics
      .split('\n')
      .filter((line) => line !== '')
      .map((line) => (JSON.parse(line) as { step: number }).step);
  }

  test('from S3 to a folder, and to another prefix, it ends with the weights of one that stayed, and samples nothing twice', async () => {
    const stayed = await train('stayed', 6, {});
    await train(name, 2, { 'store.uri': `s3://${bucket}/first/`, ...inS3 });

    const elsewhere = path.join(project.folder, 'elsewhere');
    await toFolder(`first/${name}/`, path.join(elsewhere, name));
    const onDisk = await train(name, 4, { 'store.uri': 'file:elsewhere' });
    assert.deepEqual([onDisk.step, onDisk.ledger.isSound], [4, true]);
    assert.deepEqual(stepsMeasured(readFileSync(path.join(elsewhere, name, 'metrics.jsonl'), 'utf8')), [1, 2, 3, 4]);
    assert.ok(!existsSync(path.join(project.folder, 'outputs', name)));

    await toS3(path.join(elsewhere, name), `second/${name}/`);
    const back = await train(name, 6, { 'store.uri': `s3://${bucket}/second/`, ...inS3 });
    assert.deepEqual([back.step, back.ledger.isSound], [6, true]);
    assert.deepEqual([back.policyDigest, back.ledger.counts], [stayed.policyDigest, stayed.ledger.counts]);

    const options = new URLSearchParams({ endpoint: inS3['store.endpoint']!, path_style: 'true' });
    const store = openRunStore(resolveStoreUri(`s3://${bucket}/second/?${options.toString()}`, '/'), name);
    const metrics = Buffer.from((await store.read('metrics.jsonl'))!).toString('utf8');
    assert.deepEqual(stepsMeasured(metrics), [1, 2, 3, 4, 5, 6]);

    const places = readFileSync(logOf(name), 'utf8').trim().split('\n');
    const distinct = new Set(places.map((line) => JSON.parse(line) as SampledLine).map(({ seed }) => seed));
    assert.equal(distinct.size, places.length, 'no rollout was sampled twice');
  });
});
