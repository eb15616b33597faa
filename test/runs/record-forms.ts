/** `npm run record:forms` records the types of stored forms under their versions. It refuses a form that changed without a new version. */
import { fingerprintsNow, recordedFingerprints, unversionedChanges, writeFingerprints } from './stored-types.ts';

const now = fingerprintsNow();
const left = unversionedChanges(recordedFingerprints(), now);
if (left.length === 0) writeFingerprints(now);
else process.stderr.write(`${left.join('\n\n')}\n`);
process.exitCode = left.length === 0 ? 0 : 1;
