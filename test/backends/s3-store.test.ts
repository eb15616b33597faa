import assert from 'node:assert/strict';
import { readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { after, before, describe, type TestContext } from 'node:test';
import { randomUUID } from 'node:crypto';
import { S3Store } from '../../backends/store/s3-store.ts';
import { skipWithoutGateway, startGateway, type Gateway } from './s3-gateway.ts';
import { storeContract } from './store.contract.ts';

describe('S3', { skip: skipWithoutGateway }, () => {
  let gateway: Gateway;
  before(async () => void (gateway = await startGateway()));
  after(() => gateway.remove());

  const fresh = (_: TestContext) => {
    const prefix = `${randomUUID()}/`;
    const open = () => new S3Store(gateway.location(prefix), 'run');
    const fileOf = (key: string) => path.join(gateway.bucketFolder, prefix, 'run', key);
    return { prefix, open, fileOf };
  };

  storeContract('S3Store', async (t) => {
    const { open, fileOf } = fresh(t);
    return {
      store: open(),
      other: open(),
      async damage(key) {
        const content = await readFile(fileOf(key));
        content[0]! ^= 1;
        await writeFile(fileOf(key), content);
      },
    };
  });
  assert.ok(true);
});
