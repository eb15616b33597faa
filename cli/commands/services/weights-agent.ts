import { existsSync } from 'node:fs';
import os from 'node:os';
import { Command } from '@commander-js/extra-typings';
import { startWeightsAgent } from '../../../backends/inference/index.ts';
import { localRoot, resolveStoreUri } from '../../../store/index.ts';
import { weightsAgentKeyVar } from '../../../core/names.ts';
import { print } from '../../output/print.ts';
import { readPort } from '../../typed/read-port.ts';
import { serverKey } from '../../typed/server-key.ts';

const defaultPort = 8431;

export const weightsAgentCommand = new Command('weights-agent')
  .description(
    'beside a vLLM server on another host: fetches versions from the store, verifies them, and says where they are; [inference] weights_agent names it',
  )
  .requiredOption('--store <uri>', 'where the run folders are: s3://BUCKET/PREFIX/?endpoint=…, or a folder')
  .option('--host <address>', `where it listens; others than loopback need a key in ${weightsAgentKeyVar}`, '127.0.0.1')
  .option('--port <port>', 'its port', readPort, defaultPort)
  .action(async ({ store, host, port }) => {
    const say = (line: string): void => print(`${new Date().toISOString()} ${line}`);
    const storeUri = resolveStoreUri(store, process.cwd());
    const agent = await startWeightsAgent({
      storeUri,
      host,
      port,
      key: serverKey(weightsAgentKeyVar),
      log: say,
    });
    // Others need a name of this machine instead of the wildcard address.
    const reached = agent.url.replace(/\/\/(?:0\.0\.0\.0|\[::\]):/, `//${os.hostname()}:`);
    say(`weights agent at ${agent.url}: [inference] weights_agent = "${reached}"`);
    if (storeUri.startsWith('file:') && !existsSync(localRoot(storeUri))) {
      say(
        `${localRoot(storeUri)} does not exist here: expected the folder that the run folders are in; it is looked at again with each request`,
      );
    }
    await new Promise<void>((resolve) => process.once('SIGINT', resolve).once('SIGTERM', resolve));
    await agent.close();
  });
