/** Entry of the policy server's process. */
import { parseArgs } from 'node:util';
import { makeSecret, secretFileName, secretFileOf, takeSecret } from '../../host/project-secret.ts';
import { takeSecretsFolder } from '../../host/secrets-folder.ts';
import { readBodyText } from '../../host/read-body.ts';
import { RatchetError } from '../../core/errors.ts';
import { policyVersionsHeld } from '../../core/limits.ts';
import { secretVariable } from '../../core/child-environment.ts';
import { bearer, type ServerKey } from './gate.ts';
import { reasoningParserNames, toolParserNames } from '../speech/speech.ts';
import { startPolicyServer, type PolicyServerOptions } from './policy-server.ts';

const usage =
  'policy server: --allow-root DIR (repeatable) [--host 127.0.0.1] [--port 0] [--threads 1] [--provider cpu|cuda] ' +
  '[--max-versions 8] [--memory-gb 1.5] [--tool-call-parser NAME] [--reasoning-parser NAME] [--api-key-env NAME] [--load NAME=FOLDER (repeatable): held from the start]\n' +
  `It asks for the key in NAME, or without one for the secret of this folder, ${secretFileName}, which is made if it is missing.`;

try {
  takeSecretsFolder();
  const args = process.argv.slice(2);
  const isSupervised = Boolean(process.env[secretVariable]);
  const options = readOptions(args);
  const { key } = options;
  const server = await startPolicyServer(options);
  for (const model of parseOptions(args).load) await load(server.url, model, key.value);
  console.log(`policy server listening on ${server.url}`);
  if (key.kind === 'secret' && !isSupervised) console.log(howToAsk(server.url));
  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    process.once(signal, () => void server.close().finally(() => process.exit(0)));
  }
} catch (error) {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = 1;
}

function readOptions(args: readonly string[]): PolicyServerOptions & { readonly key: ServerKey } {
  const values = parseOptions(args);
  if (values.help) {
    console.log(usage);
    process.exit(0);
  }
  return {
    host: values.host,
    port: readInteger('port', values.port, 0, 65_535),
    threads: readInteger('threads', values.threads, 1, 256),
    provider: readProvider(values.provider),
    allowRoots: values['allow-root'],
    maxVersions: readInteger('max-versions', values['max-versions'], 1, 1024),
    ...(values['memory-gb'] !== undefined && { memoryGb: readPositive('memory-gb', values['memory-gb']) }),
    parsers: {
      tools: readName('tool-call-parser', values['tool-call-parser'], toolParserNames),
      reasoning: readName('reasoning-parser', values['reasoning-parser'], reasoningParserNames),
    },
    key: readKey(values['api-key-env']),
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
        'tool-call-parser': { type: 'string' },
        'reasoning-parser': { type: 'string' },
        'api-key-env': { type: 'string' },
        load: { type: 'string', multiple: true, default: [] },
        help: { type: 'boolean', default: false },
      },
    }).values;
  } catch (cause) {
    throw new RatchetError('ConfigInvalid', `${(cause as Error).message}\n${usage}`, { cause });
  }
}

/** Loads through the HTTP API, like any client. */
async function load(url: string, model: string, key: string): Promise<void> {
  const at = model.indexOf('=');
  if (at < 1) throw new RatchetError('ConfigInvalid', `--load: expected NAME=FOLDER, got "${model}".\n${usage}`);
  const answer = await fetch(`${url}/update_weights`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: bearer(key) },
    body: JSON.stringify({ name: model.slice(0, at), weight_dir: model.slice(at + 1) }),
  });
  if (!answer.ok) throw new RatchetError('ModelUnsupported', `--load ${model}: ${await readBodyText(answer, url)}`);
}

function readKey(variable: string | undefined): ServerKey {
  if (variable === undefined) return { kind: 'secret', value: takeSecret() ?? makeSecret(process.cwd()) };
  const value = process.env[variable];
  if (value) return { kind: 'chosen', value, variable };
  throw new RatchetError('ConfigInvalid', `--api-key-env names ${variable}, which is not set. Set it to the key.`);
}

/** The arguments of a command are everybody's to read, so curl gets the header through a pipe. */
function howToAsk(url: string): string {
  return `ask it with:  sed 's/^/Authorization: Bearer /' '${secretFileOf(process.cwd())}' | curl -H @- ${url}/v1/models`;
}

function readProvider(text: string): 'cpu' | 'cuda' {
  if (text === 'cpu' || text === 'cuda') return text;
  throw new RatchetError('ConfigInvalid', `--provider: expected cpu or cuda, got "${text}".\n${usage}`);
}

/** One of vLLM's names that are read here; null = the chat template decides. */
function readName(option: string, name: string | undefined, known: readonly string[]): string | null {
  if (name === undefined || known.includes(name)) return name ?? null;
  throw new RatchetError('ConfigInvalid', `--${option}: expected one of ${known.join(', ')}, got "${name}".`);
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
