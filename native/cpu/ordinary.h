// What a graph's training step does besides recurrent layers, on the team. Work is divided so that every number is made by
// one thread in one order: results do not depend on the number of threads.
#pragma once

#include "cpu/call.h"

namespace gatewise {
namespace GATEWISE_ISA {

void product(const Product& call);
void cross_entropy(const Classes& call);
void cross_entropy_gradient(const ClassGradients& call);
void adam(const Adam& call);
void add_rows(const Rows& call);
void take_rows(const TakenRows& call);
void sums(const Sums& call);

}  // namespace GATEWISE_ISA
}  // namespace gatewise
