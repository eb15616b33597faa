/** Entry of the policy server's process. */
import { parseArgs } from 'node:util';
import { readBodyText } from '../read-body.ts';
import { RatchetError } from '../../core/errors.ts';
import { policyVersionsHeld } from '../../core/limits.ts';
import { startPolicyServer, type PolicyServerOptions } from './policy-server.ts';

const usage =
  'policy server: --allow-root DIR (repeatable) [--host 127.0.0.1] [--port 0] [--threads 1] [--provider cpu|cuda] ' +
  '[--max-versions 8] [--memory-gb 1.5] [--api-key-env NAME] [--load NAME=FOLDER (repeatable): held from the start]';

try {
  const args = process.argv.slice(2);
  const server = await startPolicyServer(readOptions(args));
  for (const model of parseOptions(args).load) await load(server.url, model, parseOptions(args)['api-key-env']);
  console.log(`policy server listening on ${server.url}`);
  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    process.once(signal, () => void server.close().finally(() => process.exit(0)));
  }
} catch (error) {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = 1;
}

function readOptions(args: readonly string[]): PolicyServerOptions {
  const values = parseOptions(args);
  if (values.help) {
    console.log(usage);
    process.exit(0);
  }
  const apiKey = readApiKey(values['api-key-env']);
  return {
    host: values.host,
    port: readInteger('port', values.port, 0, 65_535),
    threads: readInteger('threads', values.threads, 1, 256),
    provider: readProvider(values.provider),
    allowRoots: values['allow-root'],
    maxVersions: readInteger('max-versions', values['max-versions'], 1, 1024),
    ...(values['memory-gb'] !== undefined && { memoryGb: readPositive('memory-gb', values['memory-gb']) }),
    ...(apiKey !== undefined && { apiKey }),
    log: (line) => console.log(`${new Date().toISOString()} ${line}`),
  };
}

function parseOptions(args: readonly string[]) {
  try {
    return parseArgs({
      args: [...args],
      options: {
        host: { type: 'string', default: '127.0.0.1' },
        port: { type: 'string', default: '0' },
        threads: { type: 'string', default: '1' },
        provider: { type: 'string', default: 'cpu' },
        'allow-root': { type: 'string', multiple: true, default: [] },
        'max-versions': { type: 'string', default: String(policyVersionsHeld) },
        'memory-gb': { type: 'string' },
        'api-key-env': { type: 'string' },
        load: { type: 'string', multiple: true, default: [] },
        help: { type: 'boolean', default: false },
      },
    }).values;
  } catch (cause) {
    throw new RatchetError('ConfigInvalid', `${(cause as Error).message}\n${usage}`, { cause });
  }
}

/** As a client would: who is asked before is asked for what it holds. */
async function load(url: string, model: string, keyVariable: string | undefined): Promise<void> {
  const at = model.indexOf('=');
  if (at < 1) throw new RatchetError('ConfigInvalid', `--load: expected NAME=FOLDER, got "${model}".\n${usage}`);
  const key = readApiKey(keyVariable);
  const answer = await fetch(`${url}/update_weights`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...(key === undefined ? {} : { authorization: `Bearer ${key}` }) },
    body: JSON.stringify({ name: model.slice(0, at), weight_dir: model.slice(at + 1) }),
  });
  if (!answer.ok) throw new RatchetError('ModelUnsupported', `--load ${model}: ${await readBodyText(answer, url)}`);
}

function readApiKey(name: string | undefined): string | undefined {
  if (name === undefined) return undefined;
  const key = process.env[name];
  if (key) return key;
  throw new RatchetError('ConfigInvalid', `--api-key-env names ${name}, which is not set. Set it to the key.`);
}

function readProvider(text: string): 'cpu' | 'cuda' {
  if (text === 'cpu' || text === 'cuda') return text;
  throw new RatchetError('ConfigInvalid', `--provider: expected cpu or cuda, got "${text}".\n${usage}`);
}

function readPositive(name: string, text: string): number {
  const value = Number(text);
  if (text.trim() !== '' && Number.isFinite(value) && value > 0) return value;
  throw new RatchetError('ConfigInvalid', `--${name}: expected a number above 0, got "${text}".\n${usage}`);
}

function readInteger(name: string, text: string, min: number, max: number): number {
  const value = Number(text);
  if (text.trim() !== '' && Number.isInteger(value) && value >= min && value <= max) return value;
  throw new RatchetError(
    'ConfigInvalid',
    `--${name}: expected an integer from ${min} to ${max}, got "${text}".\n${usage}`,
  );
}
