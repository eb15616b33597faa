import { Command } from 'commander';
import { agents } from './agents.ts';
import { asyncLearning } from './async-learning.ts';
import { badInput } from './bad-input.ts';
import { capture } from './capture.ts';
import { configs } from './configs.ts';
import { demoLearning } from './demo-learning.ts';
import { engineDecode } from './engine-decode.ts';
import { engineTrain } from './engine-train.ts';
import { evalOnline } from './eval-online.ts';
import { evalResume } from './eval-resume.ts';
import { faults } from './faults.ts';
import { faultsSeveral } from './faults-several.ts';
import { fidelity } from './fidelity.ts';
import { fleet } from './fleet.ts';
import { fleetScale } from './fleet-scale.ts';
import { gepa } from './gepa.ts';
import { inFlight } from './in-flight.ts';
import { failingRollouts } from './failing-rollouts.ts';
import { longRun } from './long-run.ts';
import { orchestration } from './orchestration.ts';
import { packing } from './packing.ts';
import { page } from './page.ts';
import { policyServerMemory } from './policy-server-memory.ts';
import { reference } from './reference.ts';
import { rescore } from './rescore.ts';
import { rolloutsNative } from './rollouts-native.ts';
import { rolloutWorkers } from './rollout-workers.ts';
import { rolloutsTail } from './rollouts-tail.ts';
import { rolloutsVerifiers } from './rollouts-verifiers.ts';
import { s3Upload } from './s3-upload.ts';
import { samplingBias } from './sampling-bias.ts';
import { serverFuzz } from './server-fuzz.ts';
import { smollm2Decode } from './smollm2-decode.ts';
import { smollm2Learning } from './smollm2-learning.ts';
import { smollm2Parity } from './smollm2-parity.ts';
import { smollm2Train } from './smollm2-train.ts';
import { statusLatency } from './status-latency.ts';
import { sweep } from './sweep.ts';
import { tinkerOverhead } from './tinker-overhead.ts';
import { torchTrain } from './torch-train.ts';
import { trl } from './trl.ts';
import { trlGeneration } from './trl-generation.ts';
import { view } from './view.ts';

/** `npm run bench` lists the measurements, `npm run bench -- NAME [--json]` runs one. */
const bench = new Command('bench')
  .usage('NAME [--json]')
  .description('Measures Ratchet on this machine. The last line is one JSON object with the figures.')
  .helpCommand(false)
  .showHelpAfterError('(npm run bench lists the measurements)');
for (const command of [
  orchestration,
  demoLearning,
  asyncLearning,
  trl,
  trlGeneration,
  engineTrain,
  engineDecode,
  smollm2Decode,
  smollm2Learning,
  smollm2Parity,
  smollm2Train,
  serverFuzz,
  failingRollouts,
  longRun,
  faults,
  faultsSeveral,
  evalOnline,
  evalResume,
  rescore,
  s3Upload,
  rolloutsVerifiers,
  capture,
  agents,
  view,
  page,
  policyServerMemory,
  statusLatency,
  configs,
  fidelity,
  badInput,
  rolloutsNative,
  rolloutsTail,
  samplingBias,
  rolloutWorkers,
  inFlight,
  fleet,
  fleetScale,
  gepa,
  packing,
  tinkerOverhead,
  torchTrain,
  reference,
  sweep,
])
  bench.addCommand(command);

if (process.argv.length <= 2) bench.outputHelp();
else await bench.parseAsync(process.argv);
