import { Command, InvalidArgumentError } from 'commander';
import { startWeightsAgent } from '../../backends/inference/index.ts';
import { resolveStoreUri } from '../../backends/store/index.ts';
import { weightsAgentKeyVar } from '../../core/names.ts';

const usualPort = 8431;

export const weightsAgentCommand = new Command('weights-agent')
  .description(
    'beside a vLLM server on another host: fetches versions from the store, verifies them, and says where they lie; [inference] weights_agent names it',
  )
  .requiredOption('--store <uri>', 'where the run folders lie: s3://BUCKET/PREFIX/?endpoint=…, or a folder')
  .option('--host <address>', `where it listens; others than loopback need a key in ${weightsAgentKeyVar}`, '127.0.0.1')
  .option('--port <port>', 'its port', readPort, usualPort)
  .action(async ({ store, host, port }: { store: string; host: string; port: number }) => {
    const say = (line: string): void => void process.stdout.write(`${new Date().toISOString()} ${line}\n`);
    const agent = await startWeightsAgent({
      storeUri: resolveStoreUri(store, process.cwd()),
      host,
      port,
      apiKey: process.env[weightsAgentKeyVar],
      log: say,
    });
    say(`weights agent at ${agent.url}: [inference] weights_agent = "${agent.url}"`);
    await new Promise<void>((resolve) => process.once('SIGINT', resolve).once('SIGTERM', resolve));
    await agent.close();
  });

function readPort(text: string): number {
  const port = Number(text);
  if (Number.isInteger(port) && port >= 0 && port <= 65_535) return port;
  throw new InvalidArgumentError('Expected a port from 0 to 65535.');
}
