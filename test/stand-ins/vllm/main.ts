/** The stand-in as a process: it takes the arguments of `python -m vllm.entrypoints.openai.api_server` that it knows, and leaves the others. */
import { parseArgs } from 'node:util';
import { startVllmStandIn } from './server.ts';

const { values } = parseArgs({
  args: process.argv.slice(2),
  strict: false,
  allowPositionals: true,
  options: {
    model: { type: 'string' },
    'served-model-name': { type: 'string' },
    port: { type: 'string' },
    'enable-lora': { type: 'boolean' },
    'max-lora-rank': { type: 'string' },
    'sampled-log': { type: 'string' },
    'token-ms': { type: 'string' },
    middleware: { type: 'string' },
  },
});
const text = (name: string): string | undefined => (typeof values[name] === 'string' ? values[name] : undefined);
const server = await startVllmStandIn({
  model: text('model') ?? '',
  servedName: text('served-model-name') ?? text('model') ?? '',
  port: Number(text('port') ?? 0),
  takesAdapters: values['enable-lora'] === true && process.env['VLLM_ALLOW_RUNTIME_LORA_UPDATING'] === '1',
  maxLoraRank: text('max-lora-rank') === undefined ? undefined : Number(text('max-lora-rank')),
  isDevelopment: process.env['VLLM_SERVER_DEV_MODE'] === '1',
  sampledLog: text('sampled-log'),
  tokenMs: Number(text('token-ms') ?? 0),
  apiKey: process.env['VLLM_API_KEY'],
  guard: text('middleware') === undefined ? undefined : { secret: process.env['RATCHET_SECRET'] ?? '' },
});
console.log(`stand-in for vLLM at ${server.url}`);
