import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { parseStoreUri, resolveStoreUri, showStoreUri } from '../../store/store-uri.ts';
import { formatProblems, parseRunConfig } from '../../config/parse-run-config.ts';

const parse = (store: string) =>
  parseRunConfig(`model = "preset:tiny"\n[[env]]\nid = "reverse-text"\n[store]\n${store}\n`, { file: 'run.toml' });

function uriOf(store: string): string {
  const parsed = parse(store);
  assert(parsed.ok, parsed.ok ? '' : formatProblems(parsed.problems));
  return resolveStoreUri(parsed.spec.store.uri, '/p');
}

function refusal(store: string): string {
  const parsed = parse(store);
  assert(!parsed.ok);
  return formatProblems(parsed.problems);
}

describe('[store] with S3', () => {
  test('a bucket and a prefix are enough; the address gets its slash', () => {
    assert.equal(uriOf('uri = "s3://runs/team"'), 's3://runs/team/');
    assert.deepEqual(parseStoreUri('s3://runs/team/'), {
      kind: 's3',
      bucket: 'runs',
      prefix: 'team/',
      endpoint: null,
      region: null,
      pathStyle: false,
      sse: null,
      kmsKeyId: null,
    });
  });

  test('keys written into an address are refused, and not repeated', () => {
    for (const uri of ['s3://AKIA1:hidden@runs/team', 's4://AKIA1:hidden@runs', 's3://AKIA1:hid/den@runs']) {
      assert.throws(
        () => resolveStoreUri(uri, '/p'),
        (error: Error) => /expected .*s3:\/\/BUCKET/.test(error.message) && !/AKIA1|hid/.test(error.message),
      );
    }
  });

  test('endpoint, region, encryption and path style travel with the address, and are not shown to people', () => {
    const uri = uriOf(
      'uri = "s3://runs"\nendpoint = "http://127.0.0.1:9000"\nregion = "eu-1"\nsse = "aws:kms"\nkms_key_id = "arn:aws:kms:eu-1:1:key/a"',
    );
    assert.deepEqual(parseStoreUri(uri), {
      kind: 's3',
      bucket: 'runs',
      prefix: '',
      endpoint: 'http://127.0.0.1:9000',
      region: 'eu-1',
      pathStyle: true,
      sse: 'aws:kms',
      kmsKeyId: 'arn:aws:kms:eu-1:1:key/a',
    });
    assert.equal(showStoreUri(uri), 's3://runs/');
    assert.equal(resolveStoreUri(uri, '/p'), uri);
  });

  const refused: Readonly<Record<string, readonly [store: string, ...words: string[]]>> = {
    'a bucket of two letters': ['uri = "s3://ab/x"', 'store.uri', 's3://BUCKET/PREFIX/'],
    'options written into the address': ['uri = "s3://runs/?endpoint=http://h"', 'store.uri'],
    'an endpoint for a folder': ['uri = "file:out"\nendpoint = "http://h:1"', 'store.endpoint', 's3://'],
    'a key without the encryption that takes it': [
      'uri = "s3://runs"\nkms_key_id = "a"',
      'store.kms_key_id',
      'aws:kms',
    ],
    'an encryption there is not': ['uri = "s3://runs"\nsse = "aes"', 'store.sse', 'AES256'],
    'a secret access key': ['uri = "s3://runs"\nsecret_access_key = "canary-in-a-config"', 'secret'],
    'a session token': ['uri = "s3://runs"\nsession_token = "canary-in-a-config"', 'secret'],
    'the id of an access key': [`uri = "s3://runs"\nregion = "ASIA${'ABCD'.repeat(4)}"`, 'secret'],
    'an endpoint with a password': ['uri = "s3://runs"\nendpoint = "https://me:canary-in-a-config@h"', 'secret'],
  };
  for (const [name, [store, ...words]] of Object.entries(refused)) {
    test(`${name} is refused`, () => {
      const message = refusal(store);
      for (const word of words) assert(message.includes(word), `${message}\ndoes not say ${word}`);
      assert(!message.includes('canary-in-a-config'), message);
    });
  }

  test('an unknown option of an address is refused without repeating its value', () => {
    assert.throws(
      () => resolveStoreUri('s3://runs/?secret_access_key=canary', '/p'),
      (error: Error) => error.message.includes('store.secret_access_key') && !error.message.includes('canary'),
    );
  });
});
